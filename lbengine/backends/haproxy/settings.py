"""The settings of a pool behind HAProxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from slackwater.core.config import ADDRESS_PATTERN, PoolSettings
from slackwater.core.messages import Name

TCP = "tcp://"
"""Prefix of an admin socket on a TCP address."""
SOCKET_PATTERN = rf"^(?!tcp:)[^\x00-\x1f]+$(?!\n)|^{TCP}{ADDRESS_PATTERN.removeprefix('^')}"
Socket = Annotated[str, Meta(min_length=1, pattern=SOCKET_PATTERN)]


class HAProxyPool(PoolSettings, frozen=True, kw_only=True, tag_field="balancer", tag="haproxy"):
    """A backend of one or more HAProxies."""

    title: ClassVar[str] = "HAProxy"
    needs: ClassVar[str] = "needs `backend` and `socket`"
    patterns: ClassVar[Mapping[str, str]] = {SOCKET_PATTERN: "a path, or tcp://HOST:PORT"}

    backend: Annotated[Name, Meta(description="HAProxy's name of the backend; required with HAProxy")]
    socket: Annotated[
        Socket,
        Meta(
            description="HAProxy's admin socket (`stats socket PATH level admin`), required with HAProxy: a path;"
            " tcp://HOST:PORT needs `allow_tcp_socket`"
        ),
    ]
    sockets: Annotated[
        list[Socket],
        Meta(description="admin sockets of further HAProxy processes or hosts with this backend; they get the same"),
    ] = field(default_factory=list)
    allow_tcp_socket: Annotated[
        bool,
        Meta(description="accept admin sockets on TCP addresses; they have no login: who reaches one controls HAProxy"),
    ] = False
    weight_delivery: Annotated[
        Literal["socket", "agent-check"],
        Meta(
            description="how HAProxy gets its weights: by the admin socket, or by agent-check from the nodes' monitors"
            " (`agent.listen` there), so that the socket is only read and `level operator` is enough"
        ),
    ] = "socket"

    def __post_init__(self) -> None:
        if len(set(self.all_sockets)) < len(self.all_sockets):
            raise ValueError(f"`socket` and `sockets` name one twice: {', '.join(self.all_sockets)}")
        if any(socket.startswith(TCP) for socket in self.all_sockets) and not self.allow_tcp_socket:
            raise ValueError(
                "an admin socket on a TCP address has no login, so anyone who reaches it controls HAProxy;"
                " keep it in a closed network and set `allow_tcp_socket = true`, or use a path"
            )

    @property
    def all_sockets(self) -> list[str]:
        """The admin sockets of all HAProxies in front of the pool; `socket` comes first."""
        return [self.socket, *self.sockets]

    @property
    def driven(self) -> dict[str, str]:
        return {"backend": self.backend, "socket": ", ".join(self.all_sockets)}

    @classmethod
    def from_driven(cls, driven: Mapping[str, Any]) -> dict[str, Any]:
        first, *others = str(driven.get("socket", "")).split(", ")
        return {**driven, "socket": first, "sockets": others, "allow_tcp_socket": True}

    @classmethod
    def describe_place(cls, driven: Mapping[str, str]) -> str:
        return f"backend `{driven.get('backend', '')}` behind {driven.get('socket', '')}"

    @property
    def unique(self) -> list[tuple[str, str]]:
        return [("backend", f"backend `{self.backend}` of {socket}") for socket in self.all_sockets]

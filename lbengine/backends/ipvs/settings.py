"""The settings of a pool that is a virtual service of IPVS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from slackwater.core.config import PoolSettings

SERVICE_PATTERN = r"^(-t|-u|--sctp-service) (\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}$(?!\n)|^-f [1-9][0-9]*( -6)?$(?!\n)"
SERVICE_IN_WORDS = "a service as for ipvsadm: `-t IP:PORT`, `-u IP:PORT`, `--sctp-service IP:PORT`, `-f MARK [-6]`"


class ServicePool(PoolSettings, frozen=True, kw_only=True):
    """A service in IPVS's table, whoever owns it."""

    patterns: ClassVar[Mapping[str, str]] = {SERVICE_PATTERN: SERVICE_IN_WORDS}

    service: Annotated[
        str,
        Meta(
            pattern=SERVICE_PATTERN,
            description="virtual service of IPVS as for ipvsadm, required with lvs and keepalived: `-t 10.0.0.1:80`,"
            " `-u [fd00::1]:53`, `-f 7`, `-f 7 -6`",
        ),
    ]

    @property
    def driven(self) -> dict[str, str]:
        return {"service": self.service}

    @classmethod
    def describe_place(cls, driven: Mapping[str, str]) -> str:
        return f"{cls.title}'s service `{driven.get('service', '')}`"

    @property
    def unique(self) -> list[tuple[str, str]]:
        return [("service", f"service `{self.service}`")]


class IpvsPool(ServicePool, frozen=True, kw_only=True, tag_field="balancer", tag="lvs"):
    """A service that was set up with ipvsadm."""

    title: ClassVar[str] = "IPVS"
    needs: ClassVar[str] = "IPVS set up with ipvsadm; needs `service`"

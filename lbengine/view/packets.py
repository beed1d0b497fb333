"""Times of requests from the packets between this host and the servers: `slackwater-sniffer servers` as a child.

One program runs for each interface on which servers are reached, and each protocol. It writes a line of JSON for each
server that had something to show, and a line that ends the look.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from slackwater.lbengine.balancer import Server

log = logging.getLogger("slackwater.view")

FIRST_AGAIN_S = 1.0
"""Time after which a program that ended, or was ended, is started again; twice as long each further time."""
LONGEST_AGAIN_S = 60.0
WELL_AFTER_S = 60.0
"""A program that reported for this long was well: the next program that ends counts as the first."""
HUNG_AFTER_S = 10.0
"""A program that wrote nothing for this long is ended: it writes at the end of each look, whatever happened in it."""
LONGEST_LINE_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
FIND_WITHIN_S = 5.0
"""Time that `ip` has to name the interfaces."""
FIND_AGAIN_S = 30.0
"""Time after which the interfaces are asked for again: routes come and change."""
DIRECT = "its answers do not pass the balancer (direct routing or a tunnel), so their times are not seen there"
NO_TCP = "its service is not TCP, and no other packets are read"
NO_SNIFFER = "no sniffer is set"
NO_IP = "`ip route get` cannot be asked"
KEPT_S = 10.0
"""A server that the balancer no longer shows is watched for this long: it may come back, and each change of the servers
starts the programs anew."""
MOST_LOOKS = 5
"""The most looks that are kept until they are taken: now and then the balancer is slow to answer."""
HEARD_WITHIN_LOOKS = 5
"""After this many periods without a line the program counts as silent."""


class SnifferRoute(msgspec.Struct, frozen=True):
    """Requests of one route class."""

    name: str
    exchanges: int
    errors: int
    rt_mean_ms: float | None = None
    rt_p95_ms: float | None = None


class SnifferLine(msgspec.Struct, frozen=True):
    """A server's line, or the line that ends a look, which has no `server`."""

    server: str = ""
    exchanges: int = 0
    errors: int = 0
    in_flight: int = 0
    oldest_unanswered_ms: float = 0.0
    rt_mean_ms: float | None = None
    rt_p50_ms: float | None = None
    rt_p95_ms: float | None = None
    rt_p99_ms: float | None = None
    rt_sum_ms: float = 0.0
    rt_buckets: list[tuple[int, int]] = []
    unmatched: int = 0
    holes: int = 0
    is_foreign: bool = False
    routes: list[SnifferRoute] = []
    period_s: float = 0.0
    drops: int = 0


SILENT = SnifferLine()
"""The line of a server that had nothing to show in a look."""
Protocol = Literal["http1", "unknown"]
"""`unknown`: turns are timed, as on encrypted connections."""
_decode = msgspec.json.Decoder(SnifferLine).decode


class Place(NamedTuple):
    """What a program looks at besides the servers' addresses."""

    interface: str
    protocol: Protocol


class Sniffer:
    """The program of one place, started again when it ends."""

    def __init__(
        self, program: str, place: Place, servers: Collection[str], every_s: float, looked: asyncio.Event
    ) -> None:
        """`looked` is set at the end of each look."""
        self.servers = frozenset(servers)
        self.why_not = "the sniffer has not reported yet"
        """Why there are no times, in words; empty while there are."""
        self.is_new = True
        """Whether the program has neither reported nor failed yet."""
        self.pid = 0
        """The program's process id; 0 until it was started."""
        self._interface, self._every_s = place.interface, every_s
        addresses = [word for server in sorted(servers) for word in ("--server", server)]
        self._command = [program, "servers", "--interface", place.interface, "--protocol", place.protocol]
        self._command += [*addresses, "--every", f"{every_s:g}"]
        self.answered = Counter[str]()
        """Exchanges by server (`end_of`) since this object was made."""
        self._heard_s = 0.0
        self._first_heard_s = 0.0
        """When the present program first reported; 0: it has not yet."""
        self._looks = deque[tuple[dict[str, SnifferLine], SnifferLine]](maxlen=MOST_LOOKS)
        self._looked = looked
        self._task = asyncio.create_task(self._run())

    def take(self) -> tuple[Mapping[str, SnifferLine], SnifferLine] | None:
        """The lines by server of the oldest look that was not taken yet, and the line that ended it. None: there is no
        such look, or `why_not` says why there is none."""
        if not self.why_not and time.monotonic() - self._heard_s > HEARD_WITHIN_LOOKS * self._every_s:
            self.why_not = f"the sniffer on {self._interface} is silent"
        if self.why_not:
            self._looks.clear()
        return self._looks.popleft() if self._looks else None

    @property
    def is_ahead(self) -> bool:
        """There is a look that was not taken yet."""
        return bool(self._looks)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        complaint, again_s = "", FIRST_AGAIN_S
        while True:
            self._first_heard_s = 0.0
            why_not = f"no times from packets on {self._interface}: {await self._once()}"
            if self._first_heard_s and time.monotonic() - self._first_heard_s >= WELL_AFTER_S:
                complaint, again_s = "", FIRST_AGAIN_S
            if why_not != complaint:
                text = "%s; the balancer's counters are used, and the sniffer is started again after %g to %g s"
                log.warning(text, why_not, FIRST_AGAIN_S, LONGEST_AGAIN_S)
            complaint = self.why_not = why_not
            self.is_new = False
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, LONGEST_AGAIN_S)

    async def _once(self) -> str:
        """Runs the program until it ends; gives the reason in words."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=READ_BYTES,
            )
        except OSError as error:
            return f"{self._command[0]}: {error.strerror}"
        assert process.stdout is not None
        assert process.stderr is not None
        self.pid = process.pid
        look: dict[str, SnifferLine] = {}
        try:
            async for line in _lines_of(process.stdout):
                read = _decode(line)
                if read.server:
                    look[read.server] = read
                    self.answered[read.server] += read.exchanges
                    continue
                self._looks.append((look, read))
                look = {}
                self._heard_s, self.why_not, self.is_new = time.monotonic(), "", False
                self._first_heard_s = self._first_heard_s or self._heard_s
                self._looked.set()
            complaint = (await process.stderr.read(LONGEST_LINE_BYTES)).decode("utf-8", "replace").strip()
            status = await process.wait()
            return complaint.splitlines()[-1] if complaint else f"{self._command[0]} ended with status {status}"
        except TimeoutError:
            return f"{self._command[0]} hung: it wrote nothing for {HUNG_AFTER_S:g} s, and was ended"
        except (msgspec.DecodeError, ValueError) as error:
            return f"{self._command[0]} wrote a line that cannot be read: {error}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _lines_of(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The stream's lines. Raises TimeoutError where nothing comes for `HUNG_AFTER_S`, ValueError for a line without an
    end."""
    rest = b""
    while some := await _read(stream):
        *lines, rest = (rest + some).split(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            raise ValueError(f"it is longer than {LONGEST_LINE_BYTES} bytes")
        for line in lines:
            yield line


async def _read(stream: asyncio.StreamReader) -> bytes:
    """The next bytes. The wait has two parts: if this process itself was stopped meanwhile, the first part ends before
    the bytes that have come are read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HUNG_AFTER_S / 2):
            return await stream.read(READ_BYTES)
    async with asyncio.timeout(HUNG_AFTER_S / 2):
        return await stream.read(READ_BYTES)


class Packets:
    """A program for each place; `watch` follows the servers as they come, go and change their addresses."""

    def __init__(self, program: str, every_s: float) -> None:
        self._program, self._every_s = program_path(program) or program, every_s
        self.looked = asyncio.Event()
        """A sniffer has ended a look."""
        self._sniffers: dict[Place, Sniffer] = {}
        self._by_end: dict[str, Sniffer] = {}
        self._watched: dict[str, Protocol] = {}
        self._wanted: dict[str, tuple[Protocol, float]] = {}
        """End of a server -> its protocol, and when it was wanted last."""
        self._find_again_s = 0.0
        self._unreached: dict[str, str] = {}
        """End of a server -> why no interface is known."""

    async def watch(self, servers: Iterable[Server]) -> None:
        """Watches these servers, as far as they have an address, and those that were wanted lately."""
        now_s = time.monotonic()
        for server in servers:
            if server.answers_pass and server.is_tcp and (end := end_of(server.address)):
                self._wanted[end] = "unknown" if server.is_encrypted else "http1", now_s
        self._wanted = {end: wish for end, wish in self._wanted.items() if now_s - wish[1] < KEPT_S}
        wanted = {end: protocol for end, (protocol, _) in self._wanted.items()}
        if wanted == self._watched and now_s < self._find_again_s:
            return
        self._watched, self._find_again_s = wanted, now_s + FIND_AGAIN_S
        interfaces, self._unreached = await interfaces_to(wanted)
        by_place: dict[Place, set[str]] = {}
        for address, interface in interfaces.items():
            by_place.setdefault(Place(interface, wanted[address]), set()).add(address)
        for place, sniffer in list(self._sniffers.items()):
            if by_place.get(place, set()) != sniffer.servers:
                await self._sniffers.pop(place).close()
        for place, its in by_place.items():
            if place not in self._sniffers:
                self._sniffers[place] = Sniffer(self._program, place, its, self._every_s, self.looked)
        self._by_end = {end: sniffer for sniffer in self._sniffers.values() for end in sniffer.servers}

    def take(self) -> dict[str, tuple[SnifferLine, SnifferLine]]:
        """Server (`end_of`) -> its line in the oldest look that was not taken yet, and the line that ended the look."""
        times: dict[str, tuple[SnifferLine, SnifferLine]] = {}
        for sniffer in self._sniffers.values():
            if (taken := sniffer.take()) is not None:
                look, last = taken
                times |= {end: (look.get(end, SILENT), last) for end in sniffer.servers}
        return times

    @property
    def is_ahead(self) -> bool:
        """There is a look that was not taken yet."""
        return any(sniffer.is_ahead for sniffer in self._sniffers.values())

    @property
    def is_heard(self) -> bool:
        """Whether there is a sniffer that reports."""
        return any(not sniffer.why_not for sniffer in self._sniffers.values())

    def why_not(self, server: Server) -> str:
        """Why a server has no times from packets, in words; empty where it has, or nothing was answered."""
        if not server.is_tcp:
            return NO_TCP
        if not server.answers_pass:
            return DIRECT
        if (sniffer := self._sniffer_of(server)) is not None:
            return sniffer.why_not
        no_address = f"no address of a TCP server: {server.address or 'none is shown'}"
        return self._unreached.get(end_of(server.address), no_address)

    def awaits(self, server: Server) -> bool:
        """Whether its sniffer has neither reported nor failed yet."""
        sniffer = self._sniffer_of(server)
        return sniffer is not None and sniffer.is_new

    def answered(self, server: Server) -> int:
        """Exchanges of a server since its sniffer began."""
        sniffer = self._sniffer_of(server)
        return 0 if sniffer is None else sniffer.answered[end_of(server.address)]

    def _sniffer_of(self, server: Server) -> Sniffer | None:
        return self._by_end.get(end_of(server.address))

    async def close(self) -> None:
        for sniffer in self._sniffers.values():
            await sniffer.close()
        self._sniffers.clear()
        self._by_end, self._watched, self._wanted = {}, {}, {}


def program_path(program: str) -> str | None:
    """The path of a program's name: beside this Python, where our package has it, or on the PATH. None: in neither."""
    return shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")


async def interfaces_to(servers: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """`ADDRESS:PORT` -> the interface on which it is reached; for the others `ADDRESS:PORT` -> why there is none, in
    words."""
    hosts = {server: host for server in sorted(servers) if (host := host_of(server))}
    if not hosts:
        return {}, {}
    questions = sorted(set(hosts.values()))
    try:
        process = await asyncio.create_subprocess_exec(
            *("ip", "-json", "-force", "-batch", "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        return {}, dict.fromkeys(hosts, f"{NO_IP}: {error}")
    asked = "".join(f"route get {host}\n" for host in questions).encode()
    try:
        answer, _ = await asyncio.wait_for(process.communicate(asked), FIND_WITHIN_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return {}, dict.fromkeys(hosts, f"{NO_IP}: no answer")
    routes = _routes_in(answer.decode("utf-8", "replace").splitlines())
    interfaces = {server: routes[host] for server, host in hosts.items() if host in routes}
    return interfaces, {server: f"no route to {host}" for server, host in hosts.items() if server not in interfaces}


def _routes_in(lines: Sequence[str]) -> dict[str, str]:
    """Address -> interface, by the answers of `ip -json route get`, a line each."""
    routes: dict[str, str] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            routes |= {str(route["dst"]): str(route["dev"]) for route in json.loads(line)}
    return routes


def host_of(server: str) -> str:
    """The address in `ADDRESS:PORT` or `[ADDRESS]:PORT`, as on the wire: an IPv4 address in the form of IPv6 is IPv4.
    Empty where there is none, also without a port (port 0: any), and for an address of one link (`fe80::1%eth0`)."""
    host, colon, port = server.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        has_port = bool(colon) and 0 < int(port) < 65536
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id:
            return ""
        address = address.ipv4_mapped or address
    return str(address) if has_port else ""


@lru_cache(maxsize=4096)
def end_of(server: str) -> str:
    """`ADDRESS:PORT` in the sniffer's form, however the balancer writes it; empty where there is none."""
    host, port = host_of(server), server.rpartition(":")[2]
    return (f"[{host}]:{int(port)}" if ":" in host else f"{host}:{int(port)}") if host else ""

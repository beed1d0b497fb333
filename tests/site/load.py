"""Load on the test site: an open loop whose requests are kept one by one, with the server that answered.

    python -m tests.site.load --url http://10.0.0.5 --path /index.php --rps 60 --seconds 30 --out FILE

Requests come at random (a Poisson process), as users do, however slow the answers are. Each line of FILE is a request,
when it was due (monotonic), how long from then until its answer was there, its status (0: none came), and its server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

TIMEOUT_S = 30.0
SERVED_BY = b"x-served-by"
NOBODY = "-"


@dataclass(frozen=True)
class Requests:
    """The requests in order of due time. Status 0: no answer came."""

    due_mono_s: NDArray[np.float64]
    seconds: NDArray[np.float64]
    status: NDArray[np.int64]
    server: NDArray[np.str_]

    def between(self, begin_mono_s: float, end_mono_s: float) -> Requests:
        """Those that were due then."""
        chosen = (self.due_mono_s >= begin_mono_s) & (self.due_mono_s < end_mono_s)
        return Requests(self.due_mono_s[chosen], self.seconds[chosen], self.status[chosen], self.server[chosen])

    @property
    def errors(self) -> int:
        return int(np.count_nonzero((self.status < 200) | (self.status >= 400)))


def read(file: Path) -> Requests:
    """What a run wrote; also one that is under way."""
    text = file.read_text()
    rows = [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
    rows.sort(key=lambda row: float(row[0]))
    columns: Sequence[Sequence[str]] = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    return Requests(
        np.array(columns[0], dtype=np.float64),
        np.array(columns[1], dtype=np.float64),
        np.array(columns[2], dtype=np.int64),
        np.array(columns[3], dtype=np.str_),
    )


class Client:
    """Asks one HTTP/1.1 server; keeps connections, as a browser does."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, path: str) -> tuple[int, str]:
        """Status, and the server that answered. Raises OSError, EOFError or ValueError when no answer came."""
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._ask(connection, path)
            except (OSError, EOFError):  # it was closed meanwhile; a new one says whether somebody answers
                connection[1].close()
        return await self._ask(await asyncio.open_connection(self._host, self._port), path)

    async def _ask(self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str) -> tuple[int, str]:
        reader, writer = connection
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: load\r\n\r\n".encode())
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
            fields = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
            }
            if b"chunked" in fields.get(b"transfer-encoding", b""):
                while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                    await reader.readexactly(size + 2)
                await reader.readuntil(b"\r\n")
            else:
                await reader.readexactly(int(fields.get(b"content-length", b"0")))
        except BaseException:
            writer.close()
            raise
        if fields.get(b"connection", b"").lower() == b"close":
            writer.close()
        else:
            self._idle.append(connection)
        return int(first.split()[1]), fields.get(SERVED_BY, b"").decode() or NOBODY


async def play(url: str, paths: Sequence[str], rps: float, seconds: float, out: Path, seed: int) -> None:
    """Asks for the paths in turn until the time is over, and waits for the answers that are on their way."""
    place = urlsplit(url)
    client = Client(place.hostname or "127.0.0.1", place.port or 80)
    dice = random.Random(seed)
    tasks: set[asyncio.Task[None]] = set()
    with out.open("w", buffering=1) as file:

        async def ask_once(due_s: float, path: str) -> None:
            status, server = 0, NOBODY
            with contextlib.suppress(OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError):
                status, server = await asyncio.wait_for(client.get(path), TIMEOUT_S)
            file.write(f"{due_s:.6f} {time.monotonic() - due_s:.6f} {status} {server}\n")

        due_s, number = time.monotonic(), 0
        end_s = due_s + seconds
        while (due_s := due_s + dice.expovariate(rps)) < end_s:
            if (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.create_task(ask_once(due_s, paths[number % len(paths)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--path", action="append", required=True)
    parser.add_argument("--rps", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    asyncio.run(play(words.url, words.path, words.rps, words.seconds, words.out, words.seed))


if __name__ == "__main__":
    main()

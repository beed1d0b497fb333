"""A shared service that each request asks before it is answered: quick, or slow for all, as it is set.

    python -m slackwater_lab.cluster.database ADDRESS PORT

A line `delay POOL SECONDS` sets how long it thinks from then on when that pool asks; any other line is the name of who
asks, and gets `ok` after that time.
"""

from __future__ import annotations

import asyncio
import socket
import sys


class Service:
    """Answers questions after a delay."""

    def __init__(self) -> None:
        self._delay_s: dict[str, float] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                first, *rest = line.decode(errors="replace").split() or [""]
                if first == "delay":
                    pool, delay_s = rest
                    self._delay_s[pool] = float(delay_s)
                elif delays := self._delay_s.get(first, 0.0):
                    await asyncio.sleep(delays)
                writer.write(b"ok\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # who went away, or speaks something else, is not answered
            pass
        finally:
            writer.close()


async def main(address: str, port: int) -> None:
    server = await asyncio.start_server(Service().serve, address, port)
    async with server:
        await server.serve_forever()


def set_delay(address: str, port: int, pool: str, delay_s: float) -> None:
    """Sets how long a running service thinks for a pool. Raises OSError."""
    with socket.create_connection((address, port), timeout=5.0) as client:
        client.sendall(f"delay {pool} {delay_s:g}\n".encode())
        client.recv(16)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

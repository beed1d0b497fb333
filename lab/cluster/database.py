"""A shared service that each request asks before it is answered: quick, or slow for all, as it is set.

    python -m lab.cluster.database ADDRESS PORT

A line `delay SECONDS` sets how long it thinks from then on; any other line is a question and gets `ok` after that time.
"""

from __future__ import annotations

import asyncio
import socket
import sys


class Service:
    """Answers questions after a delay."""

    def __init__(self) -> None:
        self._delay_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                first, _, rest = line.decode(errors="replace").strip().partition(" ")
                if first == "delay":
                    self._delay_s = float(rest)
                elif self._delay_s > 0:
                    await asyncio.sleep(self._delay_s)
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


def set_delay(address: str, port: int, delay_s: float) -> None:
    """Sets how long a running service thinks. Raises OSError."""
    with socket.create_connection((address, port), timeout=5.0) as client:
        client.sendall(f"delay {delay_s:g}\n".encode())
        client.recv(16)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

"""Traffic through the guest's IP_VS, run inside the guest with its small Python start in mind: no imports but these.

`traffic.py serve NAME`: answers every connection on port 80 with NAME and keeps it open until the client closes; on
port 81 it answers each request of HTTP with NAME.
`traffic.py connect ADDRESS PORT COUNT [hold] [stop] [http] [from FIRST LAST]`: opens that many connections one after
the other and prints who answered, as JSON (`null`: refused or no answer). `hold` closes them at the end only; `stop`
ends after the first that nobody answered; `http` sends a request of HTTP on each; `from` takes turns with source
addresses 10.9.0.FIRST to 10.9.0.LAST.
"""

import json
import selectors
import socket
import sys


def serve(name: str) -> None:
    waiting = selectors.DefaultSelector()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name.encode())
    for port in (80, 81):
        listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
        waiting.register(listener, selectors.EVENT_READ, port)
    while True:
        for key, _ in waiting.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if key.data is not None:
                connection, _ = ready.accept()
                if key.data == 80:
                    connection.sendall(name.encode() + b"\n")
                waiting.register(connection, selectors.EVENT_READ)
            elif has_more(ready):
                ready.sendall(answer)
            else:
                waiting.unregister(ready)
                ready.close()


def has_more(connection: socket.socket) -> bool:
    """Takes a request; False at the end of the connection."""
    try:
        return bool(connection.recv(1000))
    except OSError:
        return False


def connect(address: str, port: int, count: int, words: list[str], sources: list[str]) -> list[str | None]:
    kept = []
    answers: list[str | None] = []
    for number in range(count):
        source = (sources[number % len(sources)], 0) if sources else None
        try:
            connection = socket.create_connection((address, port), 20.0, source)
            if "http" in words:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: site\r\n\r\n")
            answers.append(connection.recv(100).decode().strip().rpartition("\n")[2] or None)
        except OSError:
            answers.append(None)
            if "stop" in words:
                break
            continue
        if "hold" in words:
            kept.append(connection)
        else:
            connection.close()
    return answers


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        words = sys.argv[2:]
        position = words.index("from") if "from" in words else len(words)
        sources = range(int(words[position + 1]), int(words[position + 2]) + 1) if position < len(words) else range(0)
        answers = connect(words[0], int(words[1]), int(words[2]), words[3:], [f"10.9.0.{last}" for last in sources])
        print(json.dumps(answers))

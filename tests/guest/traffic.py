"""Traffic through the guest's IP_VS, run inside the guest with its small Python start in mind: no imports but these.

`traffic.py serve NAME`: answers every connection on port 80 with NAME and keeps it open until the client closes.
`traffic.py connect ADDRESS PORT COUNT [hold] [stop] [from FIRST LAST]`: opens that many connections one after the other
and prints who answered, as JSON (`null`: refused or no answer). `hold` closes them at the end only; `stop` ends after
the first that nobody answered; `from` takes turns with source addresses 10.9.0.FIRST to 10.9.0.LAST.
"""

import json
import selectors
import socket
import sys


def serve(name: str) -> None:
    waiting = selectors.DefaultSelector()
    listener = socket.create_server(("::", 80), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    waiting.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.sendall(name.encode() + b"\n")
                waiting.register(connection, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                waiting.unregister(key.fileobj)
                key.fileobj.close()


def connect(address: str, port: int, count: int, words: list[str], sources: list[str]) -> list[str | None]:
    kept = []
    answers: list[str | None] = []
    for number in range(count):
        source = (sources[number % len(sources)], 0) if sources else None
        try:
            connection = socket.create_connection((address, port), 20.0, source)
            answers.append(connection.recv(100).decode().strip() or None)
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
        at = words.index("from") if "from" in words else len(words)
        sources = range(int(words[at + 1]), int(words[at + 2]) + 1) if at < len(words) else range(0)
        answers = connect(words[0], int(words[1]), int(words[2]), words[3:], [f"10.9.0.{last}" for last in sources])
        print(json.dumps(answers))

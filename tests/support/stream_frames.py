"""Frame delay of a streaming service: a server of frames at a steady rate, and viewers that say how late each was.

It runs by itself with nothing but the standard library, so that it also runs in a small guest: `frames.py serve PORT
NAME`: whoever connects gets `FRAMES` frames, one each `PERIOD_S`, the first at once. `frames.py watch ADDRESS PORT
VIEWERS SECONDS`: that many viewers, each asking anew when its stream ends. Prints JSON: of each frame when it was due
(seconds from the begin), how late it came in ms, and whose it was; how many streams broke. `frames.py stall PID
STOPPED_S RUNNING_S`: a process that stands still and runs in turns, as in a host whose CPU quota a neighbour uses up;
until it is killed, or the process is gone.

A frame is due one period after the one before, counted from the instant its viewer asked: what the balancer and the
server take before the first frame is delay too, and a late frame does not move those after it.
"""

import heapq
import json
import os
import selectors
import signal
import socket
import sys
import time

PERIOD_S = 0.04
FRAMES = 25
FRAME_BYTES = 1316
"""Seven packets of an MPEG transport stream, as one datagram carries them."""
NAME_BYTES = 16
WAIT_S = 10.0


def serve(port: int, name: str) -> None:
    """Until it is killed."""
    frame = name.encode().ljust(NAME_BYTES) + bytes(FRAME_BYTES - NAME_BYTES)
    listener = socket.create_server(("", port), backlog=256)
    listener.setblocking(False)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    due: list[tuple[float, int, int, socket.socket]] = []
    count = 0
    while True:
        left_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        if waiting.select(left_s):
            connection, _ = listener.accept()
            count += 1
            heapq.heappush(due, (time.monotonic(), count, 0, connection))
        while due and due[0][0] <= time.monotonic():
            at_s, number, sent, connection = heapq.heappop(due)
            try:
                connection.sendall(frame)
            except OSError:
                connection.close()
                continue
            if sent + 1 < FRAMES:
                heapq.heappush(due, (at_s + PERIOD_S, number, sent + 1, connection))
            else:
                connection.close()


class Viewer:
    """One stream at a time."""

    def __init__(self, address: str, port: int) -> None:
        self.place = address, port
        self.broken = 0
        self.ask()

    def ask(self) -> None:
        self.asked_s = time.monotonic()
        self.received_bytes, self.head = 0, b""
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(self.place)

    def take(self, begin_s: float) -> tuple[bool, list[tuple[float, float, str]]]:
        """Whether the stream is over, and its frames that came: due, ms late, server."""
        try:
            chunk = self.socket.recv(65536)
        except BlockingIOError:
            return False, []
        except OSError:
            chunk = b""
        before = self.received_bytes // FRAME_BYTES
        self.head = (self.head + chunk)[:NAME_BYTES]
        self.received_bytes += len(chunk)
        now_s, name = time.monotonic(), self.head.decode().strip()
        dues = [self.asked_s + number * PERIOD_S for number in range(before, self.received_bytes // FRAME_BYTES)]
        over = self.received_bytes >= FRAMES * FRAME_BYTES or not chunk
        self.broken += over and self.received_bytes < FRAMES * FRAME_BYTES
        return over, [(due_s - begin_s, 1e3 * (now_s - due_s), name) for due_s in dues]


def watch(address: str, port: int, viewers: int, seconds: float, least: int = 0) -> dict[str, object]:
    """All frames that came within `seconds`, and those after it until there are `least`."""
    begin_s = time.monotonic()
    waiting = selectors.DefaultSelector()
    all_viewers = [Viewer(address, port) for _ in range(viewers)]
    for viewer in all_viewers:
        waiting.register(viewer.socket, selectors.EVENT_READ, viewer)
    frames: list[tuple[float, float, str]] = []
    while time.monotonic() < begin_s + seconds or len(frames) < least:
        for key, _ in waiting.select(0.1):
            viewer = key.data
            over, new_frames = viewer.take(begin_s)
            frames += new_frames
            if over:
                waiting.unregister(viewer.socket)
                viewer.socket.close()
                viewer.ask()
                waiting.register(viewer.socket, selectors.EVENT_READ, viewer)
    return {"frames": frames, "broken": sum(viewer.broken for viewer in all_viewers)}


def stall(pid: int, stopped_s: float, running_s: float) -> None:
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(pid, signal.SIGCONT)
            time.sleep(running_s)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "serve":
        serve(int(words[0]), words[1])
    elif command == "stall":
        stall(int(words[0]), float(words[1]), float(words[2]))
    else:
        print(json.dumps(watch(words[0], int(words[1]), int(words[2]), float(words[3]))))

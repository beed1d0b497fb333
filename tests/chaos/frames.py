"""Messages within a NATS connection, so that single ones can be lost, doubled or swapped.

The client protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

END = b"\r\n"
WITH_PAYLOAD = (b"PUB", b"HPUB", b"MSG", b"HMSG")
"""Their line ends with the number of bytes that follow."""
OURS = b"slackwater."


class Frames:
    """Cuts a byte stream into whole protocol lines, with the payload where there is one."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The frames that are whole by now. Raises ValueError for a line that is no NATS."""
        self._buffer += part
        while (end := self._buffer.find(END)) >= 0:
            words = self._buffer[:end].split()
            size = end + len(END)
            if words and words[0].upper() in WITH_PAYLOAD:
                size += int(words[-1]) + len(END)
            if len(self._buffer) < size:
                return
            frame, self._buffer = self._buffer[:size], self._buffer[size:]
            yield frame


def is_ours(frame: bytes) -> bool:
    """Whether it is a message under one of our subjects. The key-value store's are streams, which NATS repairs."""
    words = frame.split(END, 1)[0].split()
    return len(words) > 1 and words[0].upper() in WITH_PAYLOAD and words[1].startswith(OURS)


class Disorder:
    """Loses, doubles and swaps a share of the messages; all other frames pass as they came."""

    def __init__(self, share: float, random: Random) -> None:
        self._share = share
        self._random = random
        self._held: bytes | None = None

    def through(self, frame: bytes) -> bytes:
        """What to send now in place of this frame; a held one goes out after the next message."""
        if not is_ours(frame):
            return frame
        before, self._held = self._held, None
        if self._random.random() >= self._share:
            return frame + (before or b"")
        disorder = self._random.choice(("lose", "double", "swap"))
        if disorder == "swap" and before is None:
            self._held = frame
            return b""
        return {"lose": b"", "double": frame + frame, "swap": frame}[disorder] + (before or b"")

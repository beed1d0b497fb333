"""Splits the bytes that an admin socket sends into answers. Something else than HAProxy may listen there, so the bytes
are limited."""

from __future__ import annotations

from slackwater.lbengine.balancer import BalancerUnreachable

PROMPT = b"> "
"""Stands before each answer in the interactive mode."""
MOST_BYTES = 32 * 2**20
"""The most bytes of all answers together. HAProxy's answer to `show stat` has some 600 bytes a server."""
MOST_LINES = 50_000
"""The most lines of an answer: more servers than any backend has."""
LONGEST_LINE = 64 * 2**10
"""The most bytes of a line. No line of HAProxy is longer than its buffer (tune.bufsize), 16384 by default."""


class Replies:
    """Takes the answers to `expected` commands; each ends with an empty line. `where` stands in the errors."""

    def __init__(self, expected: int, where: str) -> None:
        self.answers: list[str] = []
        """The complete answers, without the empty line that ends each."""
        self._expected = expected
        self._where = where
        self._bytes = self._lines = 0
        self._answer = bytearray()
        self._line = b""
        """The line that has begun and not ended."""

    @property
    def is_prompted(self) -> bool:
        """Whether all answers have come, and HAProxy waits for the next line in its interactive mode."""
        return len(self.answers) >= self._expected and self._line == PROMPT

    def take(self, chunk: bytes) -> None:
        """Adds the next bytes. Raises BalancerUnreachable when they are more than HAProxy's answers have."""
        self._bytes += len(chunk)
        self._expect(self._bytes <= MOST_BYTES, f"more than {MOST_BYTES >> 20} MiB")
        *lines, self._line = (self._line + chunk).split(b"\n")
        self._expect(len(self._line) <= LONGEST_LINE, f"a line of more than {LONGEST_LINE >> 10} KiB")
        for line in lines:
            self._end(line.removeprefix(PROMPT))

    def _end(self, line: bytes) -> None:
        if line:
            self._lines += 1
            self._expect(self._lines <= MOST_LINES, f"more than {MOST_LINES} lines")
            self._expect(len(line) <= LONGEST_LINE, f"a line of more than {LONGEST_LINE >> 10} KiB")
            self._answer += line + b"\n"
            return
        self._expect(len(self.answers) < self._expected, f"more than {self._expected} answers")
        self.answers.append(self._answer[:-1].decode("utf-8", "replace"))
        self._answer, self._lines = bytearray(), 0

    def _expect(self, fits: bool, excess: str) -> None:
        if not fits:
            raise BalancerUnreachable(
                f"{self._where}: {excess} came as the answers to {self._expected} commands; expected those of HAProxy:"
                " does something else listen there?"
            )

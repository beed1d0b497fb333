"""Sessions that were ended by logging out: their cookies, copies too, are refused from then on.

A cookie is signed, not stored, so what is kept is the ids of ended ones (`state_dir/web-ended-sessions`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from slackwater.core.files import PRIVATE, bytes_of, replace_durably

log = logging.getLogger("slackwater.web")

MOST = 10_000
"""Most ids that are kept, the newest. Only a person with a login can add to them, and sessions end by their age too."""
DIGITS = 32


class EndedSessions:
    """The ended sessions of one process. A file that cannot be written is logged; until the process ends they are
    refused all the same."""

    def __init__(self, state_dir: str | Path) -> None:
        self._path = Path(state_dir) / "web-ended-sessions"
        self._ended = dict.fromkeys(self._read())

    def __contains__(self, session_id: str) -> bool:
        return _digest(session_id) in self._ended

    def add(self, session_id: str) -> None:
        self._ended[_digest(session_id)] = None
        while len(self._ended) > MOST:
            del self._ended[next(iter(self._ended))]
        try:
            replace_durably(self._path, "".join(f"{digest}\n" for digest in list(self._ended)).encode(), PRIVATE)
        except OSError as error:
            log.error("%s: a logout may be forgotten at the next start: %s", self._path, error.strerror)

    def _read(self) -> Iterator[str]:
        try:
            lines = bytes_of(self._path).decode("ascii", "replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("%s: earlier logouts are not known: %s", self._path, error.strerror)
            return
        yield from (line for line in lines[-MOST:] if len(line) == DIGITS)


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()[:DIGITS]

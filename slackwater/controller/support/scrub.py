"""Removes secrets from texts: those that the settings and the state folder name, and what looks like one."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from slackwater.core.files import as_owner

MOST_SECRET_BYTES = 1_000_000
REMOVED = "[removed]"
LEAST_CHARACTERS = 6
"""Shorter texts are not searched for: they are in ordinary words too."""
SECRET_KEY = re.compile(
    r"password|passwd|passphrase|secret|token|seed|nkey|credential|creds|private|hash|sha256|cookie|(^|_|-)keys?(_|-|$)",
    re.IGNORECASE,
)
"""Names of settings and fields whose values are secrets, or lead to one."""
FREE_NAMES = ("servers",)
"""Settings that are tables with names of the site's own."""
_B64 = r"[A-Za-z0-9+/=_.-]"
PATTERNS = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*(?:PRIVATE KEY|SEED|JWT)-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL),
    re.compile(r"\bS[UACONX][A-Z2-7]{56}\b"),  # an NKey's seed: https://github.com/nats-io/nkeys
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]*"),  # JSON Web Token, RFC 7519
    re.compile(r"\$(?:2[aby]|1|5|6|y|argon2\w*)\$[^\s\"'\\]{8,}"),  # crypt(5)
    re.compile(r"\b(?:scrypt|pbkdf2):[^\s\"'\\]{8,}"),  # werkzeug.security
    re.compile(r"\bswt_[A-Za-z0-9_-]+"),  # `slackwater web token add`
    re.compile(rf"(?i)(?<=bearer ){_B64}{{8,}}|(?<=basic ){_B64}{{8,}}"),
    re.compile(r"(?<=://)[^/\s@\"'\\]+(?=@)"),  # a URL's user and password
    re.compile(
        r"(?i)(?<![\w])(?:[\w-]{0,40}(?:password|passwd|passphrase|secret|token|api[_-]?key|private[_-]?key|seed))"
        r"(?P<between>\\?[\"']?\s*[=:]\s*\\?[\"']?)(?P<value>[^\s\"'\\,;}\]]+)"
    ),
)


class Scrubber:
    """Knows this controller's secrets; counts what it removed."""

    def __init__(self) -> None:
        self.removed = 0
        self._known: set[str] = set()

    def know(self, texts: Iterable[str]) -> None:
        """Texts that must not be anywhere in the bundle, each line of them."""
        for text in texts:
            self._known |= {line for line in map(str.strip, text.splitlines()) if len(line) >= LEAST_CHARACTERS}

    def text(self, text: str) -> str:
        """The text without secrets."""
        forms = {form for known in self._known for form in (known, msgspec.json.encode(known).decode()[1:-1])}
        for form in sorted(forms, key=lambda form: (-len(form), form)):
            if count := text.count(form):
                self.removed += count
                text = text.replace(form, REMOVED)
        for pattern in PATTERNS:
            text = pattern.sub(self._replace, text)
        return text

    def _replace(self, match: re.Match[str]) -> str:
        groups = match.groupdict()
        if "value" not in groups:
            self.removed += 1
            return REMOVED
        if groups["value"].startswith(REMOVED[:-1]):
            return match.group(0)
        self.removed += 1
        return match.group(0)[: match.start("value") - match.start()] + REMOVED

    def settings(self, table: Any, key: str = "", known: Collection[str] | None = None) -> Any:
        """A settings file's content without secrets; they are known from then on, and so is what their files hold.

        Of keys that are not in `known` the values are removed too: a secret may be there by a slip of the pen.
        """
        if isinstance(table, Mapping):
            return {name: self._setting(value, str(name), key, known) for name, value in table.items()}
        if isinstance(table, list):
            return [self.settings(value, key, known) for value in table]
        if isinstance(table, bool) or table == "" or table is None:
            return table
        if SECRET_KEY.search(key):
            self.removed += 1
            self.know([str(table), _content(Path(str(table)))])
            return f"[removed: {_describe(Path(str(table)))}]"
        if isinstance(table, str):
            self.know(re.findall(r"://[^/\s@]*:([^/\s@]+)@", table))
        return table

    def _setting(self, value: Any, name: str, section: str, known: Collection[str] | None) -> Any:
        if SECRET_KEY.search(section):
            return self.settings(value, section, known)
        if known is not None and name not in known and section not in FREE_NAMES:
            self.removed += 1
            return "[removed: no setting of this name is known]"
        return self.settings(value, name, known)

    def known_files(self, state_dir: Path) -> None:
        """Learns the secrets that the controller keeps in its folder: passwords of the bus, logins and tokens."""
        for file in sorted((state_dir / "bus" / "passwords").glob("*")):
            self.know([_content(file)])
        users = _content(state_dir / "web-users.json")
        try:
            self._know_strings(msgspec.json.decode(users))
        except msgspec.DecodeError:
            self.know([users])

    def _know_strings(self, value: Any, key: str = "") -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self._know_strings(inner, str(name))
        elif isinstance(value, list):
            for inner in value:
                self._know_strings(inner, key)
        elif isinstance(value, str) and SECRET_KEY.search(key):
            self.know([value])


def _content(path: Path) -> str:
    """What a secret's file holds, so that it can be searched for; empty where it cannot be read."""
    try:
        with as_owner(path):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return ""
    try:
        regular = stat.S_ISREG(os.fstat(handle).st_mode)
        return os.read(handle, MOST_SECRET_BYTES).decode("utf-8", "replace") if regular else ""
    except OSError:
        return ""
    finally:
        os.close(handle)


def _describe(path: Path) -> str:
    """What there is at a path, without the path."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return "no file that can be looked at"
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    return f"a file of {status.st_size} bytes, mode {stat.S_IMODE(status.st_mode):04o}"

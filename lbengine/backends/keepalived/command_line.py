"""keepalived's command line, read as getopt_long(3) reads it: options in one word, values in any form.

Python's getopt knows no optional values before Python 3.14.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SHORT = "vhlndu:DRS:f:p:i:es:mM::g::Gt::PCr:VXac:ITBb:xA:"
"""The letters of keepalived 2.2.7 (`parse_cmdline` in its core/main.c). `:`: with a value; `::`: with one in the same
word, or none."""
ALL = "all"
"""`--all`, which has no letter."""
LONG = {
    **{"use-file": "f", "vrrp": "P", "check": "C", "no_bfd": "B", "all": ALL, "log-console": "l", "log-detail": "D"},
    **{"log-facility": "S", "log-file": "g", "flush-log-file": "flush-log-file", "no-syslog": "G", "umask": "u"},
    **{"release-vips": "X", "dont-release-vrrp": "V", "dont-release-ipvs": "I", "dont-respawn": "R", "dont-fork": "n"},
    **{"dump-conf": "d", "pid": "p", "vrrp_pid": "r", "genhash": "T", "checkers_pid": "c", "address-monitoring": "a"},
    **{"bfd_pid": "b", "snmp": "x", "snmp-agent-socket": "A", "core-dump": "m", "core-dump-pattern": "M"},
    **{"namespace": "s", "all-config": "e", "config-id": "i", "signum": "signum", "config-fd": "config-fd"},
    **{"config-test": "t", "version": "v", "help": "h"},
}
"""Long name -> letter."""
COLONS = dict(re.findall(r"(\w)(:*)", SHORT))
WITH_VALUE = {*(letter for letter, colons in COLONS.items() if colons), "signum", "config-fd"}
VALUE_IN_WORD = {letter for letter, colons in COLONS.items() if colons == "::"}


class CommandLineError(ValueError):
    """A word is none of keepalived's options. The text names it."""


def options(words: Sequence[str]) -> list[tuple[str, str]]:
    """The options by letter, with their values, in their order. `words`: without the program's name.

    Raises CommandLineError.
    """
    found = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        for letter, value in _long(word) if word.startswith("--") else _together(word):
            if value is None and letter in WITH_VALUE - VALUE_IN_WORD:
                value = next(rest, None)
                if value is None:
                    raise CommandLineError(f"`{word}` lacks its value")
            found.append((letter, value or ""))
    return found


def _long(word: str) -> list[tuple[str, str | None]]:
    """A long option; its name may be cut short. None where the word does not have its value."""
    begun, is_given, value = word.removeprefix("--").partition("=")
    names = [begun] if begun in LONG else [name for name in LONG if name.startswith(begun)]
    if len(names) != 1 or (is_given and LONG[names[0]] not in WITH_VALUE):
        raise CommandLineError(f"`{word}` is no option that is known here")
    return [(LONG[names[0]], value if is_given else None)]


def _together(word: str) -> list[tuple[str, str | None]]:
    """The options of one word: `-nf/x` is `-n -f /x`. None for a value that the word does not have."""
    pairs: list[tuple[str, str | None]] = []
    letters = word.removeprefix("-") if word.startswith("-") else ""
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in COLONS:
            raise CommandLineError(f"`-{letter}` in `{word}` is no option that is known here")
        if letter in WITH_VALUE:
            pairs.append((letter, letters or None))
            break
        pairs.append((letter, None))
    return pairs

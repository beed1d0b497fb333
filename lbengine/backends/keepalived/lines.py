"""The lines of keepalived's configuration on which it acts: includes are in their places, conditions decided,
parameters filled in, and sequences written out.

keepalived.conf(5): "Conditional configuration", "Parameter substitution", "Sequence blocks". `~LST` is not followed. It
stays in its line, where it is no known keyword.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

DEEPEST = 40
"""The most includes, conditions and parameters within each other."""
MOST_LINES = 500_000
INCLUDE = re.compile(r"include[a-z]?\s+(\S.*)")
CONDITION = re.compile(r"@(\^?)(\S+)\s*")
DEFINITION = re.compile(r"\$([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
PARAMETER = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)(?=\s|$)", re.ASCII)
SEQUENCE = re.compile(r"~SEQ(x?)\(([^()]*)\)\s*")
BRACES = re.compile(r"\{([^{}]*)\}")


class ConfigurationError(ValueError):
    """A configuration cannot be followed. The text names the place."""


class Line(NamedTuple):
    """A line and its place: `FILE:NUMBER`."""

    where: str
    text: str


class Texts(dict[str, str]):
    """The texts of a configuration and of its includes, by path; `lines`: the lines on which keepalived acts."""

    lines: list[Line]


Read = Callable[[str], str | None]
Matching = Callable[[str], list[str]]


def gather(path: str, read: Read, matching: Matching, config_id: str | None = None) -> Texts:
    """Follows a configuration. Raises ConfigurationError.

    `read`: path -> text, None for no file. `matching`: pattern -> the files that keepalived would include.
    `config_id`: the name that conditions are compared with; None: the first part of this host's name.
    """
    reader = _Reader(read, matching, platform.node().partition(".")[0] if config_id is None else config_id)
    reader.texts.lines = list(reader.file(path, 0))
    return reader.texts


def lines_of(texts: dict[str, str]) -> list[Line]:
    """The lines of gathered texts, or of texts without includes."""
    if isinstance(texts, Texts):
        return texts.lines
    return [line for path in texts for line in gather(path, texts.get, lambda _: []).lines]


class _Reader:
    """Reads a configuration from its beginning to its end, as keepalived does."""

    def __init__(self, read: Read, matching: Matching, config_id: str) -> None:
        self.texts = Texts()
        self._read = read
        self._matching = matching
        self._config_id = config_id
        self._parameters = {"_INSTANCE": config_id, "_HASH": "#", "_BANG": "!"}
        self._count = 0

    def file(self, path: str, depth: int) -> Iterator[Line]:
        text = self._read(path)
        if text is None:
            raise ConfigurationError(f"{path}: cannot be read")
        if depth > DEEPEST:
            raise ConfigurationError(f"{path}: included too deeply")
        self.texts[path] = text
        before = self._parameters.get("_PWD", "")
        self._parameters["_PWD"] = str(PurePosixPath(path).parent)
        numbered = iter(enumerate(text.split("\n"), start=1))
        for number, line in numbered:
            if "$" in line and line.rstrip().endswith("\\"):  # a definition of several lines
                parts = [line]
                while parts[-1].rstrip().endswith("\\") and (following := next(numbered, None)) is not None:
                    parts.append(following[1])
                line = "\n".join(part.rstrip().removesuffix("\\") for part in parts)
            yield from self._line(Line(f"{path}:{number}", line), path, depth)
        self._parameters["_PWD"] = before

    def _line(self, line: Line, path: str, depth: int) -> Iterator[Line]:
        self._count += 1
        if depth > DEEPEST or self._count > MOST_LINES:
            raise ConfigurationError(f"{line.where}: parameters or includes go on without an end")
        text = "\n".join(without_comment(part) for part in line.text.split("\n")).strip()
        while condition := CONDITION.match(text):
            if "(" in condition[2]:
                raise ConfigurationError(f"{line.where}: `@{condition[2][:80]}` is not understood here; write @one|two")
            is_ours = self._config_id in condition[2].split("|")
            if is_ours == bool(condition[1]):
                return
            text = text[condition.end() :]
        if definition := DEFINITION.match(text):
            self._parameters[definition[1]] = definition[2].strip()
        elif sequence := SEQUENCE.match(text):
            name, values = _sequence(sequence[2], line.where, "x" if sequence[1] else "d")
            for value in values:
                self._parameters[name] = value
                yield from self._line(Line(line.where, text[sequence.end() :]), path, depth + 1)
        elif (filled := PARAMETER.sub(self._value, text)) != text:
            for part in filled.split("\n"):
                yield from self._line(Line(line.where, part), path, depth + 1)
        elif include := INCLUDE.match(text):
            for pattern in _without_braces(include[1]):
                for other in self._matching(str(PurePosixPath(path).parent / pattern)):
                    yield from self.file(other, depth + 1)
        elif text:
            yield Line(line.where, text)

    def _value(self, match: re.Match[str]) -> str:
        return self._parameters.get(match[1] or match[2], match[0])


def without_comment(line: str) -> str:
    """The line without its comment, which begins with `#` or `!` outside of double quotes."""
    is_quoted = False
    for position, letter in enumerate(line):
        if letter == '"':
            is_quoted = not is_quoted
        elif letter in "#!" and not is_quoted:
            return line[:position]
    return line


def _sequence(words: str, where: str, kind: str) -> tuple[str, list[str]]:
    """The variable of `~SEQ(var, start, step, end)` and its values; `start` and `step` may be left out."""
    name, *numbers = (word.strip() for word in words.split(","))
    try:
        limits = [int(number, 16 if number.lower().startswith("0x") else 10) for number in numbers]
    except ValueError:
        limits = []
    if not 1 <= len(limits) <= 3 or (len(limits) == 3 and not limits[1]):
        raise ConfigurationError(f"{where}: expected ~SEQ(variable, start, step, end), got {words[:80]!r}")
    end = limits[-1]
    start = limits[0] if len(limits) > 1 else (1 if end > 0 else -1)
    step = limits[1] if len(limits) == 3 else (1 if end >= start else -1)
    if abs(end - start) // abs(step) > MOST_LINES:
        raise ConfigurationError(f"{where}: a sequence of more than {MOST_LINES}")
    return name, [format(value, kind) for value in range(start, end + (1 if step > 0 else -1), step)]


def _without_braces(pattern: str) -> list[str]:
    """The patterns in which csh's `{a,b}` is written out."""
    if not (braces := BRACES.search(pattern)):
        return [pattern]
    choices = (pattern[: braces.start()] + choice + pattern[braces.end() :] for choice in braces[1].split(","))
    return [written for choice in choices for written in _without_braces(choice)]

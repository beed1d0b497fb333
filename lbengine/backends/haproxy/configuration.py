"""haproxy.cfg as HAProxy reads it: words, variables, sections, and the files that a running HAProxy was started with.

HAProxy Configuration Manual, sections 2.2 (quoting and escaping) and 2.3 (environment variables). Only the standard
library is used: the Ansible collection has this file too.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SECTIONS = (
    *("global", "defaults", "frontend", "backend", "listen", "peers", "resolvers", "userlist", "cache", "program"),
    *("mailers", "http-errors", "ring", "log-forward", "fcgi-app", "crt-store", "log-profile", "traces", "acme"),
)
PROXIES = ("backend", "listen")
"""The kinds of sections that have servers."""
SPACE = " \t\n\v\f\r"
ESCAPED = {"n": "\n", "r": "\r", "t": "\t", " ": " ", "\\": "\\", "#": "#", "'": "'", '"': '"', "$": "$"}
UNKNOWN = "\0"
"""Stands in a word for a variable whose value only HAProxy knows."""
OWN_VARIABLES = tuple(
    f"HAPROXY_{name}"
    for name in (
        *("BRANCH", "CFGFILES", "CLI", "LOCALPEER", "MASTER_CLI", "MWORKER", "STARTUP_VERSION", "STARTUPVERSION"),
        *("HTTP_LOG_FMT", "HTTP_CLF_LOG_FMT", "HTTPS_LOG_FMT", "TCP_LOG_FMT", "TCP_CLF_LOG_FMT"),
    )
)
"""Variables that HAProxy sets by itself, each since some version."""
CONDITIONS = {".if": 1, ".elif": 0, ".else": 0, ".endif": -1}
"""Keyword -> what it adds to the depth of conditions. Only HAProxy knows which branch holds."""
VARIABLE = re.compile(r"([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:-([^}]*))?(\[\*\])?\}", re.ASCII)
UNIX_FAMILIES = ("unix", "uxst")
"""What stands before the `@` of a path."""
PROC = Path("/proc")


class Section(NamedTuple):
    """A section of a configuration."""

    kind: str
    name: str
    start: int
    """Index of its first line."""
    end: int
    """Index of the line behind its last."""


class Started(NamedTuple):
    """The files and variables with which a running HAProxy was started."""

    files: list[str]
    """Real paths of its configuration files, in HAProxy's order."""
    folder: str
    """Its working directory."""
    environ: dict[str, str]


def words(line: str, environ: Mapping[str, str]) -> list[str]:
    """The words of a line. A quote that is never closed ends with the line; HAProxy refuses it."""
    line_words: list[str] = []
    word: str | None = None
    quote, position = "", 0
    while position < len(line):
        letter, after = line[position], line[position + 1 : position + 2]
        position += 1
        if quote == "'":
            quote, letter = ("", "") if letter == "'" else (quote, letter)
        elif letter == "'" and not quote:
            quote, letter = letter, ""
        elif letter == '"':
            quote, letter = ("" if quote else '"'), ""
        elif letter == "\\" and re.match(r"x[0-9A-Fa-f]{2}", line[position:]):
            letter = chr(int(line[position + 1 : position + 3], 16))
            position += 3
        elif letter == "\\" and after in ESCAPED and (quote or after != "$"):
            letter = ESCAPED[after]
            position += 1
        elif letter == "$" and quote and (name := VARIABLE.match(line, position)):
            variable = name[1] or name[2]
            value = environ.get(variable, None if variable in OWN_VARIABLES else name[3])
            letter = UNKNOWN if value is None or name[4] else value
            position = name.end()
        elif not quote and letter == "#":
            break
        elif not quote and letter in SPACE:
            line_words += [] if word is None else [word]
            word = None
            continue
        word = (word or "") + letter
    return line_words if word is None else [*line_words, word]


def is_known(word: str) -> bool:
    """Whether a word has no variable whose value only HAProxy knows."""
    return UNKNOWN not in word


def rows_of(lines: Sequence[str], environ: Mapping[str, str]) -> list[list[str]]:
    """The words of each line.

    Variables that the file itself sets (`setenv`) hold for the lines below. In a condition (`.if`) only HAProxy knows
    whether they are set.
    """
    known = dict(environ)
    rows = []
    depth = 0
    for line in lines:
        rows.append(row := words(line, known))
        depth += CONDITIONS.get(row[0], 0) if row else 0
        before = dict(known)
        if row[:1] == ["setenv"] and len(row) == 3:
            known[row[1]] = row[2]
        elif row[:1] == ["presetenv"] and len(row) == 3:
            known.setdefault(row[1], row[2])
        elif row[:1] in (["unsetenv"], ["resetenv"]):
            kept = row[1:] if row[0] == "resetenv" else known.keys() - set(row[1:])
            known = {name: value for name, value in known.items() if name in kept}
        if depth > 0:
            differing = [name for name in before | known if before.get(name) != known.get(name)]
            known = before | dict.fromkeys(differing, UNKNOWN)
    return rows


def sections(rows: Sequence[Sequence[str]]) -> list[Section]:
    """The sections of a configuration, in their order."""
    starts = [n for n, row in enumerate(rows) if row and row[0] in SECTIONS]
    names = ((rows[n][0], rows[n][1] if len(rows[n]) > 1 else "") for n in starts)
    return [Section(*name, *bounds) for name, bounds in zip(names, pairwise([*starts, len(rows)]), strict=True)]


def stats_sockets(row: Sequence[str]) -> list[tuple[str, str]]:
    """The addresses that a row `stats socket` opens, each with its level; none for another row."""
    if list(row[:2]) != ["stats", "socket"] or len(row) < 3:
        return []
    levels = [value for option, value in pairwise(row[3:]) if option == "level"]
    return [(address, levels[-1] if levels else "operator") for address in row[2].split(",")]


def unix_path(address: str, folder: str) -> str | None:
    """The path that a socket's address names; None where it names none. HAProxy's `unix-bind prefix` is not put before
    that of a `stats socket`.

    `folder`: HAProxy's working directory, from where a relative path counts.
    """
    address = address.removeprefix("stream+")
    family, at, path = ("unix", "@", address) if address.startswith("/") else address.partition("@")
    if not at or family not in UNIX_FAMILIES:
        return None
    return str(Path(folder, path)) if is_known(path) else path


def text_of(path: str | Path) -> str:
    """A file's text. HAProxy takes any encoding, so bytes that are no UTF-8 become surrogates, which can be written
    back. Raises OSError."""
    return Path(path).read_bytes().decode("utf-8", "surrogateescape")


def lines_of(text: str) -> list[str]:
    """The lines of a text, with their ends. Only a line feed ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)


def started_with(path: str, proc: Path = PROC) -> list[Started]:
    """How the running HAProxies that read this file were started, each way once."""
    return [way for way in started(proc) if path in way.files]


def started(proc: Path = PROC) -> list[Started]:
    """How the running HAProxies of this host were started, each way once. Needs root to see all of them."""
    ways: list[Started] = []
    for folder in sorted(proc.glob("[0-9]*")):
        with contextlib.suppress(OSError, ValueError):
            if not (folder / "exe").readlink().name.startswith("haproxy"):
                continue
            arguments = _strings(folder / "cmdline")
            root = [arguments[arguments.index("-C") + 1]] if "-C" in arguments[:-1] else []
            cwd = (folder / "cwd").readlink().joinpath(*root)
            names = [value for key, value in pairwise(arguments) if key == "-f"]
            names += arguments[arguments.index("--") + 1 :] if "--" in arguments else []
            files = [os.path.realpath(file) for name in names for file in in_folder(cwd / name)]
            variables = (setting.partition("=") for setting in _strings(folder / "environ"))
            environ = {name: value for name, _, value in variables if not name.startswith("HAPROXY_MWORKER")}
            way = Started(files, str(cwd), environ)
            # Another container's file may have the same path.
            is_ours = bool(files) and all(Path(f"{folder}/root{file}").samefile(file) for file in files)
            if is_ours and way not in ways:
                ways.append(way)
    return ways


def _strings(file: Path) -> list[str]:
    return [os.fsdecode(string) for string in file.read_bytes().split(b"\0")[:-1]]


def in_folder(path: Path) -> Iterator[Path]:
    """The files that HAProxy reads for `-f PATH`."""
    if not path.is_dir():
        yield path
        return
    yield from sorted(file for file in path.glob("*.cfg") if file.is_file() and not file.name.startswith("."))

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
"""What each adds to the depth. Which branch holds only HAProxy knows."""
VARIABLE = re.compile(r"([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:-([^}]*))?(\[\*\])?\}", re.ASCII)
PROC = Path("/proc")


class Section(NamedTuple):
    """One section of a configuration."""

    kind: str
    name: str
    start: int
    """Index of its first line."""
    end: int
    """Index behind its last."""


class Started(NamedTuple):
    """How a running HAProxy was started, as far as its configuration goes."""

    files: list[str]
    """In HAProxy's order."""
    folder: str
    environ: dict[str, str]


def words(line: str, environ: Mapping[str, str]) -> list[str]:
    """The words of a line. A quote that is never closed, which HAProxy refuses, ends with the line."""
    found: list[str] = []
    word: str | None = None
    quote, at = "", 0
    while at < len(line):
        letter, after = line[at], line[at + 1 : at + 2]
        at += 1
        if quote == "'":
            quote, letter = ("", "") if letter == "'" else (quote, letter)
        elif letter == "'" and not quote:
            quote, letter = letter, ""
        elif letter == '"':
            quote, letter = ("" if quote else '"'), ""
        elif letter == "\\" and re.match(r"x[0-9A-Fa-f]{2}", line[at:]):
            letter = chr(int(line[at + 1 : at + 3], 16))
            at += 3
        elif letter == "\\" and after in ESCAPED and (quote or after != "$"):
            letter = ESCAPED[after]
            at += 1
        elif letter == "$" and quote and (name := VARIABLE.match(line, at)):
            variable = name[1] or name[2]
            value = environ.get(variable, None if variable in OWN_VARIABLES else name[3])
            letter = UNKNOWN if value is None or name[4] else value
            at = name.end()
        elif not quote and letter == "#":
            break
        elif not quote and letter in SPACE:
            found += [] if word is None else [word]
            word = None
            continue
        word = (word or "") + letter
    return found if word is None else [*found, word]


def is_known(word: str) -> bool:
    """Whether nothing in a word is known to HAProxy only."""
    return UNKNOWN not in word


def rows_of(lines: Sequence[str], environ: Mapping[str, str]) -> list[list[str]]:
    """The words of each line. What the file itself does to variables (`setenv`) holds for the lines below; in a
    condition (`.if`) only HAProxy knows whether it does."""
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
    """In their order."""
    starts = [n for n, row in enumerate(rows) if row and row[0] in SECTIONS]
    names = ((rows[n][0], rows[n][1] if len(rows[n]) > 1 else "") for n in starts)
    return [Section(*name, *bounds) for name, bounds in zip(names, pairwise([*starts, len(rows)]), strict=True)]


def text_of(path: str | Path) -> str:
    """A file's text. HAProxy takes any encoding: bytes that are no UTF-8 come as surrogates, which can be written back.
    Raises OSError."""
    return Path(path).read_bytes().decode("utf-8", "surrogateescape")


def lines_of(text: str) -> list[str]:
    """With their ends. Only a line feed ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)


def started_with(path: str, proc: Path = PROC) -> list[Started]:
    """How the running HAProxies that read this file were started, each way once."""
    return [one for one in started(proc) if path in one.files]


def started(proc: Path = PROC) -> list[Started]:
    """How the running HAProxies of this host were started, each way once. Needs root to see all of them."""
    found: list[Started] = []
    for folder in sorted(proc.glob("[0-9]*")):
        with contextlib.suppress(OSError, ValueError):
            if not (folder / "exe").readlink().name.startswith("haproxy"):
                continue
            given = _strings(folder / "cmdline")
            root = [given[given.index("-C") + 1]] if "-C" in given[:-1] else []
            cwd = (folder / "cwd").readlink().joinpath(*root)
            names = [value for key, value in pairwise(given) if key == "-f"]
            names += given[given.index("--") + 1 :] if "--" in given else []
            files = [os.path.realpath(file) for name in names for file in in_folder(cwd / name)]
            variables = (one.partition("=") for one in _strings(folder / "environ"))
            environ = {name: value for name, _, value in variables if not name.startswith("HAPROXY_MWORKER")}
            one = Started(files, str(cwd), environ)
            # Another container's file may have the same path.
            is_ours = bool(files) and all(Path(f"{folder}/root{file}").samefile(file) for file in files)
            if is_ours and one not in found:
                found.append(one)
    return found


def _strings(file: Path) -> list[str]:
    return [os.fsdecode(one) for one in file.read_bytes().split(b"\0")[:-1]]


def in_folder(path: Path) -> Iterator[Path]:
    """The files that HAProxy reads for `-f PATH`."""
    if not path.is_dir():
        yield path
        return
    yield from sorted(file for file in path.glob("*.cfg") if not file.name.startswith("."))

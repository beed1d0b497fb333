"""Man pages and shell completions of our programs, made from what their own `--help` says: that of `slackwater` as it
stands in docs/reference/command-line.md, which has no command that a site lacks.

clap's and click's help have the same parts: a sentence, `Usage:`, `Commands:`, `Options:`, an example.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime

HELP_COLUMNS = "100"


@dataclass(frozen=True)
class Help:
    """What `--help` of a command says; `words` are the words that call it."""

    words: list[str]
    text: str
    commands: list[Help] = field(default_factory=list)

    @property
    def about(self) -> str:
        """Its first paragraph in one line; click has it after the usage, clap before."""
        paragraphs = [part for part in re.split(r"\n\s*\n", self.text) if not part.lstrip().startswith("Usage:")]
        return " ".join(paragraphs[0].split())

    @property
    def options(self) -> list[str]:
        """Long options."""
        return sorted(set(re.findall(r"^\s+(?:-\w, )?(--[a-z][a-z-]*)", section(self.text, "Options"), re.MULTILINE)))


def section(text: str, name: str) -> str:
    """The indented lines under `NAME:`; empty when there are none."""
    section = re.search(rf"^{name}:\n((?:[ \t].*\n|\n)*)", text + "\n", re.MULTILINE)
    return section.group(1) if section else ""


def read(program: str, words: list[str] | None = None) -> Help:
    """Asks a program and all its subcommands; `program` is its path."""
    words = words or [os.path.basename(program)]  # noqa: PTH119 - a word, not a path
    done = subprocess.run(
        [program, *words[1:], "--help"],
        env={"PATH": os.environ["PATH"], "COLUMNS": HELP_COLUMNS, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=True,
    )
    text = done.stdout.rstrip() + "\n"
    names = re.findall(r"^  ([a-z][a-z-]*)(?:\s{2,}|$)", section(text, "Commands"), re.MULTILINE)
    return Help(words, text, [read(program, [*words, name]) for name in names if name != "help"])


def in_reference(page: str, program: str) -> Help:
    """A program and its subcommands, as the command-line reference has them."""
    sections = re.findall(r"(?ms)^##+ ([a-z -]+)\n\n```text\n(.*?\n)```$", page)
    first, *below = [Help(name.split(), text) for name, text in sections if name.split()[0] == program]
    return Help(first.words, first.text, below)


def _roff(text: str) -> str:
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in lines)


def _all(shown: Help) -> list[Help]:
    return [shown, *(inner for command in shown.commands for inner in _all(command))]


def man_page(shown: Help, version: str, epoch_s: int) -> str:
    """One page of section 1 for a program and all its subcommands."""
    name = shown.words[0]
    day = datetime.fromtimestamp(epoch_s, UTC).date().isoformat()
    parts = [
        f'.TH {name.upper()} 1 "{day}" "{name} {version}" "User Commands"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(shown.about.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_roff(name)}",
        "COMMAND [OPTIONS]",
        ".SH DESCRIPTION",
        ".nf",
        _roff(shown.text),
        ".fi",
        ".SH COMMANDS",
    ]
    for command in _all(shown)[1:]:
        parts += [f".SS {_roff(' '.join(command.words))}", ".nf", _roff(command.text), ".fi"]
    return "\n".join(parts) + "\n"


def bash_completion(shown: Help) -> str:
    """A completion of subcommands and long options; what follows an option is a file."""
    name = shown.words[0]
    function = "_" + name.replace("-", "_")
    cases = [
        f'        "{" ".join(command.words[1:])}") words="'
        f'{" ".join([*(inner.words[-1] for inner in command.commands), *command.options])}" ;;'
        for command in _all(shown)
    ]
    return "\n".join(
        [
            f"# bash completion for {name}",
            f"{function}() {{",
            '    local current="${COMP_WORDS[COMP_CWORD]}" said="" words="" word',
            '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '        [[ $word == -* || $word == */* ]] || said="${said:+$said }$word"',
            "    done",
            '    case "$said" in',
            *cases,
            "    esac",
            '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")',
            "}",
            f"complete -o default -F {function} {name}",
            "",
        ]
    )

"""Pieces of the report's HTML: tables and figures, each with the command that made it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

STYLE = """body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;
margin:1em 0}td,th{border:1px solid #888;padding:.2em .6em;text-align:left}figure{margin:2em 0}img{max-width:100%}
code{background:#eee}.short{border:3px solid #000;padding:1em;font-weight:bold}caption{caption-side:bottom;
text-align:left}"""


def document(title: str, body: Sequence[str]) -> str:
    """The whole page."""
    style = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><title>{escape(title)}</title>{style}\n" + "\n".join(body) + "\n</html>\n"


def warning(text: str) -> str:
    return f'<p class="short">{escape(text)}</p>'


def missing(title: str, why: str) -> list[str]:
    """A section of what was not measured."""
    return [f"<h2>{escape(title)}</h2>", f"<p><b>Not measured:</b> {escape(why)}</p>"]


def figure(drawn: Path | None, caption: str, *commands: str) -> list[str]:
    """Nothing where nothing was drawn."""
    if drawn is None:
        return []
    image = f'<img src="{escape(drawn.name)}" alt="{escape(caption)}">'
    return [f"<figure>{image}<figcaption>{escape(caption)}: {_codes(commands)}</figcaption></figure>"]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *commands: str) -> str:
    """With the commands that made it below."""
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{_codes(commands)}</caption><tr>{head}</tr>{lines}</table>"


def number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def _codes(commands: Sequence[str]) -> str:
    return "; ".join(f"<code>{escape(one)}</code>" for one in commands)

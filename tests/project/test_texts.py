"""The list of the texts that a person may see."""

from __future__ import annotations

from pathlib import Path

from tools.texts import ROOT, files, texts

CODE = '''"""A module about nothing."""

import click

WHY = "its programs wait for a CPU"
WORD = "calm"


def reason(times: float) -> str:
    """A docstring for developers only."""
    return f"it waits {times:.0f} times as long {'since the last restart' if times else ''}"


@click.group()
def bus() -> None:
    """Users and permissions of the bus."""


@click.command()
def week() -> None:
    """Show what a week was."""
'''
PAGE = """<h1>{{ pool }}</h1>
{# never shown to anybody #}
<p>No servers on record.</p>
<p>Slow since {{ since }} or so{% if late %}, which is late{% endif %}</p>
<p title="What users feel" class="not of anybody">{{ age or "less than an hour" }}</p>
"""


def test_sentences_of_code_are_listed_with_their_lines_and_docstrings_are_not(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    assert [(text.line, text.text) for text in texts(tmp_path / "code.py", tmp_path)] == [
        (5, "its programs wait for a CPU"),
        (11, "it waits {...} times as long {...}"),
        (11, "since the last restart"),
        (16, "Users and permissions of the bus."),
        (21, "Show what a week was."),
    ]


def test_the_text_of_a_template_is_listed_without_its_tags(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    assert [(text.line, text.text) for text in texts(tmp_path / "page.html", tmp_path)] == [
        (3, "No servers on record."),
        (4, "Slow since {...} or so, which is late"),
        (5, "What users feel"),
        (5, "less than an hour"),
    ]


SCRIPT = """// never shown to anybody, "not this"
const silent = `no connection for ${seconds} s`;
show("Nothing was measured");
"""
RUST = r"""/// A comment about nothing.
const QUOTE: char = '"';
fn reason() -> String {
    format!("no disk with a device \
             behind {name}")
}
/// Carry out Orders until the end.
///
/// Nothing is signed here.
#[derive(Debug, Parser)]
struct Command {
    /// The file of settings.
    file: PathBuf,
}
/// A comment about nothing again.
struct Other {
    /// Nor is this shown.
    file: PathBuf,
}
#[cfg(test)]
mod tests { const SHOWN: &str = "not shown to anybody"; }
"""


def test_strings_of_scripts_and_of_the_programs_of_a_node_are_listed(tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text(SCRIPT)
    (tmp_path / "disk.rs").write_text(RUST)
    assert [(text.line, text.text) for text in texts(tmp_path / "page.js", tmp_path)] == [
        (2, "no connection for {...} s"),
        (3, "Nothing was measured"),
    ]
    assert [(text.line, text.text) for text in texts(tmp_path / "disk.rs", tmp_path)] == [
        (4, "no disk with a device behind {...}"),
        (7, "Carry out Orders until the end."),
        (9, "Nothing is signed here."),
        (12, "The file of settings."),
    ]


ALERTS = """groups:
  - rules:
      - annotations:
          summary: 'Pool {{ $labels.pool }}: the controller is silent'
          description: Weights may stay lowered.
"""


def test_what_alerts_mail_is_listed(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(ALERTS)
    assert [(text.line, text.text) for text in texts(tmp_path / "alerts.yml", tmp_path)] == [
        (4, "Pool {...}: the controller is silent"),
        (5, "Weights may stay lowered."),
    ]


def test_each_part_that_speaks_to_people_is_read() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in files()}
    assert folders == {"slackwater", "detector", "lbengine", "web", "monitor", "node", "sniffer", "wsengine"}

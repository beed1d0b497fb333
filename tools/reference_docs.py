"""Writes docs/reference/{settings,messages,metrics,alerts,api,command-line}.md: from the declared settings, schema/,
the code of the metrics, the rules for Prometheus, the description of the API, and what `--help` of each command prints;
that of the lab's commands goes to docs/how-it-works/lab-commands.md. And the README.md of each Ansible role, from its
argument_specs.yml; and CONTRIBUTING.md's lists, from tools/adding.toml.

`--check` writes nothing and exits 1 when a page is not what it would be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import click
import yaml  # type: ignore[import-untyped]

import slackwater.lbengine.backends.table  # noqa: F401  (declares the balancers that a configuration can name)
from slackwater.controller.cli.added import place_of
from slackwater.controller.cli.main import cli
from slackwater.core import config
from slackwater.core.messages import KINDS
from slackwater.web.blueprints.api import described as described_api
from slackwater.web.metric_histograms import SERVER_RESPONSE
from slackwater.web.metric_values import METRICS
from tools.role_docs import role_page

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("slackwater-monitor", "slackwater-sniffer", "slackwater-wsengine")
WIDTH = 100
MARGIN = 2
"""Columns that click leaves free in a terminal of this width."""
NOTE = "Written by `tools/reference_docs.py` from {source}; change that, then run `make docs`.\n"
Json = dict[str, Any]
PLACEHOLDER = re.compile(r"\{\{ \$(?:labels\.(\w+)|value)[^}]*\}\}")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def type_of(schema: Json) -> str:
    """A JSON Schema's type in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_of(part) for part in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if "prefixItems" in schema:
        return f"[{'; '.join(type_of(part) for part in schema['prefixItems'])}]"
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if schema.get("type") == "object":
        return f"object of {type_of(schema.get('additionalProperties') or {})}"
    kind = str(schema.get("type", "any value"))
    if schema.get("maximum") == 1:
        return f"{kind}, 0 to 1"
    return f"{kind}, at least 0" if schema.get("minimum", -1) >= 0 else kind


def fields_of(schema: Json) -> str:
    """A table of an object's fields, or the words of an enum."""
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"]) + "\n"
    required = schema.get("required", [])
    return table(
        ("field", "type", "required", "meaning"),
        [
            (f"`{name}`", type_of(field), "yes" if name in required else "", one_line(field.get("description", "")))
            for name, field in schema.get("properties", {}).items()
        ],
    )


def one_line(text: str) -> str:
    return " ".join(text.split())


def described(name: str, schema: Json, heading: str) -> Iterator[str]:
    yield f"{heading} {name}\n"
    if schema.get("description"):
        yield one_line(schema["description"]) + "\n"
    yield fields_of(schema)


def settings_of(program: str) -> list[tuple[str, str, str]]:
    """The settings of a program of the node: dotted name, default as TOML, help."""
    listed = subprocess.run(
        [ROOT / "target/release" / program, "config", "--list", "--json"], capture_output=True, text=True, check=True
    ).stdout
    return [(row["name"], row["default"], row["help"]) for row in json.loads(listed)]


def setting_tables(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """One table a section."""
    sections: dict[str, list[tuple[str, str, str]]] = {"": []}
    for name, default, text in rows:
        section, _, key = name.rpartition(".")
        shown = "required" if default == "(required)" else f"`{default}`"
        sections.setdefault(section, []).append((f"`{key}`", shown, one_line(text)))
    for section, entries in sections.items():
        heading = f"`[[{section}]]`" if section == "pool" else f"`[{section}]`" if section else "At the top"
        if entries:
            yield f"### {heading}\n"
            yield table(("setting", "default", "meaning"), entries)


def settings() -> str:
    """Each setting of the controller's and the node's files."""
    declared = (
        "`slackwater/core/config/settings.py` and `node_changes.py`, `lbengine/backends/*/settings.py`,\n"
        "`monitor/src/config.rs` and `wsengine/src/config.rs`"
    )
    return "\n".join(
        [
            "# Settings\n",
            NOTE.format(source=declared),
            "An unknown setting is an error that names its line and the nearest known one. So is a number of the\n"
            "controller's file that is infinite, above 1000000000, or nearer to 0 than 0.000001.\n",
            "## The controller's file\n",
            "`/etc/slackwater/controller.toml`, or what `--config` or `SLACKWATER_CONFIG` names.\n"
            "Check it with `slackwater config check FILE`. The smallest that works:\n",
            '```toml\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/run/haproxy/admin.sock"\n```\n',
            *setting_tables(config.describe()),
            "## The node's file\n",
            "`/etc/slackwater/node.toml`, or what `--config` names. Check it with `slackwater-monitor config FILE`.\n",
            *setting_tables(settings_of("slackwater-monitor")),
            "## The wsengine's file\n",
            "`/etc/slackwater/wsengine.toml`, or what `--config` names.\n"
            "Check it with `slackwater-wsengine config FILE`.\n",
            *setting_tables(settings_of("slackwater-wsengine")),
        ]
    )


def messages() -> str:
    """Each message with its fields, then the types that several messages use."""
    parts = ["# Messages\n", NOTE.format(source="`schema/*.json`")]
    parts.append(
        "Every message on the bus is one JSON object, but for Samples: a monitor sends the same object in\n"
        "MessagePack. A first byte of 128 and above tells them apart. Unknown fields are ignored. A wrong type is\n"
        "refused; so are a number beyond 10^15, a whole one beyond 64 bits, and a time after 2099. A value that could\n"
        "not be measured is `null` or left out. Golden examples: `schema/examples/`.\n"
    )
    types: Json = {}
    for kind in KINDS:
        schema = json.loads((ROOT / f"schema/{kind}.json").read_text(encoding="utf-8"))
        types |= schema.get("$defs", {})
        parts += described(schema["title"], schema, "##")
    parts.append("## Types used above\n")
    for name in sorted(types):
        parts += described(name, types[name], "###")
    return "\n".join(parts)


def controller_metrics() -> list[tuple[str, ...]]:
    """Name, labels and help of each metric."""
    return [(f"`{name}`", ", ".join(labels), text) for name, labels, text in sorted([*METRICS, SERVER_RESPONSE])]


def monitor_metrics() -> list[tuple[str, ...]]:
    """Name, label and help of each metric that a collector declares, and of those of no collector."""
    files = [*sorted(ROOT.glob("monitor/src/collectors/*.rs")), ROOT / "monitor/src/metrics/mod.rs"]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    row = re.compile(r'^\s+(Gauge|Rate|Count) "(\w+)"(?: \["(\w+)" = "(\w+)"\])? "([^"]*)" =>', re.MULTILINE)
    by_name: dict[str, tuple[str, list[str], str]] = {}
    for kind, name, label, value, text in row.findall(source):
        full = f"slackwater_{name}" + ("" if kind == "Gauge" else "_total")
        labels = by_name.setdefault(full, (label, [], text))[1]
        labels.extend([value] if value else [])
    return [
        (f"`{name}`", f"{label}: {', '.join(values)}" if label else "", text)
        for name, (label, values, text) in by_name.items()
    ]


def metrics() -> str:
    """What the controller and each monitor show to Prometheus."""
    head = ("metric", "labels", "meaning")
    return "\n".join(
        [
            "# Metrics\n",
            NOTE.format(source="`web/metric_values.py` and `monitor/src/collectors/`"),
            "Files for Prometheus and Grafana: [observability](../operations/observability.md).\n",
            "## The controller\n",
            "`http://127.0.0.1:8099/metrics` (`web.listen`). It is computed from the journal at each request, so a\n"
            "dead part shows as a high age, not as its last value. With `otlp.endpoint` the same metrics go to an\n"
            "OpenTelemetry collector ([observability](../operations/observability.md#opentelemetry)).\n",
            f"`{SERVER_RESPONSE[0]}` is a histogram.\n",
            table(head, controller_metrics()),
            "## The monitor\n",
            "`http://127.0.0.1:9465/metrics` (`metrics.listen`), in the format of OpenMetrics. A value that the last\n"
            "Sample lacks is not on the page. `slackwater_response_time_seconds` is a histogram of the response times\n"
            "on the wire. `slackwater_samples_published_total` and `slackwater_samples_dropped_total` count Samples,\n"
            "`slackwater_asks_total` how often the controller asked for more of them.\n"
            "`slackwater_monitor_collector_duration_seconds` and `slackwater_monitor_collector_success` have a label\n"
            "`collector` and are of its last run; a collector that is switched off has neither.\n",
            table(head, monitor_metrics()),
        ]
    )


def alerts() -> str:
    """Each alert: when it fires, and what to do first."""
    rows = []
    for file in ("alerts.yml", "slo.yml"):
        groups = yaml.safe_load((ROOT / "web/monitoring" / file).read_text(encoding="utf-8"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        for rule in (rule for rule in rules if "alert" in rule):
            texts = [PLACEHOLDER.sub(shown_label, rule["annotations"][key]) for key in ("summary", "description")]
            rows.append((f"`{rule['alert']}`", rule["labels"]["severity"], rule.get("for", "at once"), *texts))
    return "\n".join(
        [
            "# Alerts\n",
            NOTE.format(source="`web/monitoring/alerts.yml` and `slo.yml`"),
            "How to have them: [observability](../operations/observability.md). If users suffer meanwhile:\n"
            "[stop it](../operations/README.md#stop-it-at-3-am).\n",
            table(("alert", "severity", "fires after", "it says", "then"), sorted(rows)),
        ]
    )


def shown_label(placeholder: re.Match[str]) -> str:
    """`{{ $labels.pool }}` as POOL; a value as N."""
    return placeholder[1].upper() if placeholder[1] else "N"


def api() -> str:
    """Each path of the API, then the structs of the answers."""
    whole = described_api.description()
    rows = []
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            given = [word["name"] for word in operation.get("parameters", []) if word.get("in") == "query"]
            content = operation["responses"]["200"].get("content", {})
            answers = [type_of(entry["schema"]) for entry in content.values()]
            summary = one_line(operation["summary"])
            query = ", ".join(f"`{name}`" for name in given)
            rows.append((f"`{method.upper()} {path}`", summary, query, "".join(answers)))
    parts = [
        "# The API\n",
        NOTE.format(source="`web/blueprints/api.py`"),
        "`/api/v1/openapi.json` is the same description for programs. Programs log in with a token\n"
        "(`slackwater web token add NAME --role operator`):\n",
        "```sh\n"
        'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8099/api/v1/pools\n'
        "curl -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\\n"
        '    -d \'{"action": "pause", "why": "deploy"}\' http://127.0.0.1:8099/api/v1/pools/web/control\n'
        "```\n",
        "`/healthz` answers 200 while every pool has fresh cycles, and 503 otherwise. It is up to a second old.\n",
        "An answer has a limited size (400 beyond it), and few are made at a time (429 with `Retry-After`):"
        " [what one visitor can take](../operations/dashboard.md#what-one-visitor-can-take).\n",
        table(("request", "meaning", "query parameters", "answer"), rows),
        "## Objects\n",
    ]
    for name, schema in sorted(whole["components"]["schemas"].items()):
        parts += described(name, schema, "###")
    return "\n".join(parts)


def of_click(command: click.Command, words: list[str]) -> Iterator[tuple[str, str]]:
    """Name and help of a click command and all that is below it."""
    context = click.Context(command, info_name=" ".join(words), terminal_width=WIDTH - MARGIN, max_content_width=WIDTH)
    yield " ".join(words), command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from of_click(below, [*words, name])


def of_program(program: Path, words: list[str]) -> Iterator[tuple[str, str]]:
    """Name and help of a program of the node and all its subcommands."""
    environment = {"PATH": os.environ["PATH"], "COLUMNS": str(WIDTH)}
    text = subprocess.run(
        [program, *words[1:], "--help"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    yield " ".join(words), text
    listed = re.search(r"^Commands:\n((?:  .*\n)*)", text, re.MULTILINE)
    for name in re.findall(r"^  ([a-z-]+) ", listed.group(1) if listed else "", re.MULTILINE):
        if name != "help":
            yield from of_program(program, [*words, name])


def help_of(name: str, text: str, heading: str = "###") -> str:
    """A section with what `--help` of a command prints; a program's own is above those of its commands."""
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return f"{heading if ' ' in name else '##'} {name}\n\n```text\n{lines}\n```\n"


def of_the_lab(name: str) -> bool:
    """Is this command, or a group that it is in, added by `slackwater-lab`?"""
    words = name.split()[1:]
    return any(place_of(".".join(words[:length])) is not None for length in range(1, len(words) + 1))


def command_line() -> str:
    """The help of every command that a site may have."""
    parts = [
        "# Command line\n",
        NOTE.format(source="what `--help` of each command prints"),
    ]
    with mock.patch("slackwater.controller.cli.added.entry_points", return_value=()):  # as where no lab is installed
        parts += [help_of(name, text) for name, text in of_click(cli, ["slackwater"])]
    for program in PROGRAMS:
        parts += [help_of(name, text) for name, text in of_program(ROOT / "target/release" / program, [program])]
    return "\n".join(parts)


def lab_commands() -> str:
    """The help of every command that `slackwater-lab` adds."""
    parts = [
        "# The lab's commands\n",
        NOTE.format(source="what `--help` of each command prints"),
        "For developers: what `pip install . ./lab` adds in a checkout. What they do: [the lab](lab.md) and\n"
        "[the governor](governor.md). None of it is [stable](../operations/upgrading.md#what-is-stable).\n",
    ]
    parts += [help_of(name, text, "##") for name, text in of_click(cli, ["slackwater"]) if of_the_lab(name)]
    return "\n".join(parts)


def contributing() -> str:
    """CONTRIBUTING.md with the lists of tools/adding.toml between their two comments."""
    lists = tomllib.loads((ROOT / "tools/adding.toml").read_text(encoding="utf-8"))["list"]
    written = [
        f"\n### {each['name']}\n\n{numbered(each['steps'])}\n{each.get('more', '')}".rstrip() + "\n" for each in lists
    ]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    head, begin, rest = page.partition("<!-- lists -->\n")
    _, end, tail = rest.partition("<!-- end of the lists -->\n")
    return head + begin + "".join(written) + "\n" + end + tail


def numbered(steps: Sequence[tuple[str, str]]) -> str:
    return "".join(
        textwrap.fill(f"{number}. `{place}`: {text}.", 120, subsequent_indent="   ", break_on_hyphens=False) + "\n"
        for number, (place, text) in enumerate(steps, 1)
    )


PAGES = {
    "docs/reference/settings.md": settings,
    "docs/reference/messages.md": messages,
    "docs/reference/metrics.md": metrics,
    "docs/reference/alerts.md": alerts,
    "docs/reference/api.md": api,
    "docs/reference/command-line.md": command_line,
    "docs/how-it-works/lab-commands.md": lab_commands,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: python -m tools.reference_docs --check",
    )
    parser.add_argument("--check", action="store_true", help="only check whether the pages are up to date")
    check = parser.parse_args().check
    status = 0
    roles = {folder / "README.md": partial(role_page, folder) for folder in sorted(ROOT.glob("ansible/roles/*"))}
    for path, page in (
        {ROOT / name: page for name, page in PAGES.items()} | roles | {ROOT / "CONTRIBUTING.md": contributing}
    ).items():
        text = page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            print(f"{path.relative_to(ROOT)} is out of date; run `make docs`", file=sys.stderr)
            status = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main())

"""The README of an Ansible role, from its argument_specs.yml (every variable) and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

Json = dict[str, Any]


def role_page(role: Path) -> str:
    """What the role in this folder is for, and a table of its variables."""
    spec: Json = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    needs: list[Json] = yaml.safe_load((role / "meta/main.yml").read_text())["dependencies"]
    others = "".join(f" Its variables are those of {needed['role']} too." for needed in needs)
    lines = [
        f"# {role.name}\n",
        "Written by `tools/role_docs.py` from `meta/argument_specs.yml` and `defaults/main.yml`; change those, then run"
        " `make docs`.\n",
        f"{spec['short_description']}. {spec['description']}{others}\n",
        "The playbook `slackwater.slackwater.site` runs all roles in their order.\n",
        "| variable | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for (name, option), default in zip(spec["options"].items(), defaults(role, spec).values(), strict=True):
        cells = (f"`{name}`", type_of(option), f"`{default}`" if default else "empty", option["description"])
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def defaults(role: Path, spec: Json) -> dict[str, str]:
    """Variable -> its default as it stands in defaults/main.yml, in one line.

    Raises:
        KeyError: a variable of the specification has none.
    """
    defaults: Json = yaml.safe_load((role / "defaults/main.yml").read_text())
    return {name: text_of(defaults[name]) for name in spec["options"]}


def text_of(value: object) -> str:
    """A value as YAML in one line; empty for the empty string."""
    if isinstance(value, str):
        return " ".join(value.split())
    return str(yaml.safe_dump(value, default_flow_style=True, width=1000)).removesuffix("...\n").strip()


def type_of(option: Json) -> str:
    """`str`, `list of str`, or the words to choose from."""
    if "choices" in option:
        return ", ".join(f"`{word}`" for word in option["choices"])
    return f"list of {option['elements']}" if option["type"] == "list" else str(option["type"])

"""The log's fields as the page on observability has them, and as the code and the units write them."""

from __future__ import annotations

import re

from slackwater.controller.cli.commands import ForJournald
from slackwater.core.messages import GOVERNOR
from tests.support.paths import ROOT

LOGS = (ROOT / "docs/operations/observability.md").read_text().partition("## Logs")[2]
PRODUCTION = ("slackwater", "detector", "lbengine", "web")
OF_OTHERS = {"asyncio", "opentelemetry", "waitress.queue"}
"""Names of libraries of which some lines are not shown."""


def row(field: str) -> str:
    (description,) = re.findall(rf"(?m)^\| `{field}` \| (.*) \|$", LOGS)
    return str(description)


def names_in_code() -> set[str]:
    """The names of our loggers, and the programs on the nodes that log."""
    loggers: set[str] = set()
    for part in PRODUCTION:
        for file in (ROOT / part).rglob("*.py"):
            loggers |= set(re.findall(r"getLogger\((.*?)\)", file.read_text()))
    programs = set()
    for program in ("monitor", "wsengine"):
        sources = "".join(file.read_text() for file in (ROOT / program / "src").glob("*.rs"))
        if "log::init(" in sources:
            programs |= set(re.findall(r'const PROGRAM: &str = "([a-z-]+)"', sources))
    return {{"GOVERNOR": GOVERNOR}.get(name, name.strip('"')) for name in loggers} - OF_OTHERS | programs


def test_each_name_in_the_log_is_documented() -> None:
    rows = re.findall(r"(?m)^\| (`[a-z.-]+`(?:, `[a-z.-]+`)*) \| [^|]+ \|$", LOGS.partition("| name | who")[2])
    documented = [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]
    assert len(documented) == len(set(documented))
    assert set(documented) == names_in_code()


def test_the_parts_are_those_that_the_units_name() -> None:
    units = [*(ROOT / "packaging").rglob("*.service"), *(ROOT / "ansible/roles").rglob("*.service.j2")]
    named = {part for unit in units for part in re.findall(r"LogExtraFields=SLACKWATER_PART=(\w+)", unit.read_text())}
    assert set(re.findall(r"`(\w+)`", row("SLACKWATER_PART"))) == named


def test_the_priorities_are_those_that_the_controller_and_the_nodes_write() -> None:
    documented = {int(number) for number in re.findall(r"\b\d\b", row("PRIORITY"))}
    assert documented == {*(number for _, number in ForJournald.LEVELS), 7}
    assert documented == {int(number) for number in re.findall(r'"<(\d)>"', (ROOT / "node/src/log.rs").read_text())}

"""The detector's model for its page: read by `slackwater detector explain --json`, in a process of its own.

So the web server does not load scikit-learn, and a broken model file breaks nothing here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import msgspec

from slackwater.views.pool import NOTHING

READ_WITHIN_S = 60.0
STATES = {"calm": ("●", "calm"), "interference": ("▲", "interference")}


class Leaf(msgspec.Struct):
    """A node of the drawn tree: a question with two branches, or a leaf's state."""

    text: str
    symbol: str = ""
    state: str = ""
    branches: list[Branch] = []


class Branch(msgspec.Struct):
    """One answer."""

    when: str
    then: Leaf


class ModelPage(msgspec.Struct):
    """What the page shows of the model."""

    error: str = ""
    name: str = ""
    trained: str = ""
    trees: list[tuple[str, Leaf]] = []
    """Kind of node, and its tree."""
    scores: list[list[str]] = []
    """State, precision, recall, ticks."""
    delays: list[str] = []
    data: list[str] = []


class Models:
    """Reads the model once, at the first request of its page."""

    def __init__(self, which: str) -> None:
        self._which = which
        self._lock = threading.Lock()
        self._read: ModelPage | None = None

    def get(self) -> ModelPage:
        with self._lock:
            if self._read is None or self._read.error:
                self._read = self._ask()
            return self._read

    def _ask(self) -> ModelPage:
        command = [sys.executable, "-P", "-m", "slackwater.controller.cli.main", "detector", "explain", "--json"]
        command += ["--model", self._which] if self._which else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=READ_WITHIN_S, check=False)
            if done.returncode:
                return ModelPage(error=done.stderr.strip() or f"`detector explain` ended with {done.returncode}")
            return model_page(msgspec.json.decode(done.stdout))
        except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError, KeyError, IndexError) as error:
            return ModelPage(error=f"the model cannot be read: {error}")


def model_page(about: dict[str, Any]) -> ModelPage:
    """From the output of `detector explain --json`. Raises KeyError, IndexError for something else."""
    scores: list[list[str]] = []
    delays: list[str] = []
    if (result := (about.get("scores") or {}).get("tree")) is not None:
        for state, score in result["states"].items():
            if score["ticks"]:
                scores.append([state, _share(score["precision"]), _share(score["recall"]), f"{score['ticks']:,}"])
        median, p95 = result["detection_delay_median_s"], result["detection_delay_p95_s"]
        delays.append(
            f"{result['noises']} noises, {result['missed']} missed; seen after {median} s (median) and {p95} s (p95)"
        )
        delays.append(
            f"{result['false_episodes']} false episodes in {result['calm_node_hours']:.2g} node-hours without a"
            f" neighbour{_during(result.get('false_during', {}))}"
        )
    return ModelPage(
        name=str(about["name"]),
        trained=str(about.get("trained", "")),
        trees=[(kind, _leaf(nodes, 0)) for kind, nodes in about["trees"].items()],
        scores=scores,
        delays=delays,
        data=[f"{part['file']}: {part['description']}" for part in about.get("data", [])],
    )


def _leaf(nodes: list[dict[str, Any]], number: int) -> Leaf:
    node = nodes[number]
    if "says" in node:
        symbol, word = STATES[node["says"]]
        return Leaf(f"{word} (log-likelihood ratio {node['ratio']:+.1f})", symbol, node["says"])
    limit = f"{node['limit']:g}"
    branches = [
        Branch(f"at most {limit}", _leaf(nodes, node["below"])),
        Branch(f"above {limit}", _leaf(nodes, node["above"])),
    ]
    return Leaf(f"{node['asks']}?", branches=branches)


def _during(seconds_by_cause: dict[str, int]) -> str:
    """What was done to the nodes meanwhile: `: 8 while nothing was done, 4 beside a flash_crowd`."""
    parts = [
        f"{count} {'while nothing was done' if cause == 'nothing' else f'beside a {cause}'}"
        for cause, count in sorted(seconds_by_cause.items(), key=lambda pair: -pair[1])
    ]
    return f": {', '.join(parts)}" if parts else ""


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}%"

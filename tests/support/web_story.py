"""A journal with a story in it, and what a page shows of it."""

from __future__ import annotations

import html.parser

from slackwater.core.messages import (
    Change,
    ChangeCause,
    Cpu,
    Cycle,
    Message,
    Mode,
    Sample,
    ServerState,
    State,
    Traffic,
    Verdict,
)

T0 = 1_795_000_000.0


MARKUP = "<script>alert(1)</script><b>&amp;"


class Clock:
    """Wall time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_unix_s = T0

    def __call__(self) -> float:
        return self.now_unix_s


def story(
    why: str = "interference: run delay 14x", mode: Mode = "act", sentence: str = "web: web1 100 -> 0"
) -> list[Message]:
    """A pool of two: web1 beside a neighbour, taken to 0 a moment ago."""
    states: dict[str, State] = {"web1": "interference", "web2": "calm"}
    messages: list[Message] = []
    for node, state in states.items():
        traffic = Traffic(rps=80.0, rt_p50_ms=2.0, rt_p95_ms=62.0 if node == "web1" else 4.5)
        for k in range(20):
            unix_s = T0 - 0.2 * k
            messages.append(Sample(1, node, "web", unix_s, "boot", k, 0.2, cpu=Cpu("cgroup", 0.4), traffic=traffic))
        messages.append(Verdict(1, node, "web", T0, state, T0 - 42, 0.8, ["run delay 14x"], "start"))
    weights = {"web1": 0 if mode == "act" else 100, "web2": 100}
    servers = [
        ServerState("web1", "up", weights["web1"], 100, 0, why=why, cause="interference"),
        ServerState("web2", "up", weights["web2"], 100, 100),
    ]
    done = mode == "act"
    cause: ChangeCause = "interference"
    messages.append(Change(1, "c1", "web", T0 - 42, "weight", "web1", 100, 0, why, "lbengine", done, cause=cause))
    messages.append(Cycle(1, "web", T0, mode, False, "roundrobin", "optimal", sentence, servers, "share"))
    return messages


class Texts(html.parser.HTMLParser):
    """The texts of a page by `data-field`, the tags, and everything a browser would show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self.hidden: set[str] = set()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stands: dict[str, str] = {}
        """Where the site stands, by `data-stands`."""
        self._open: list[tuple[str | None, str | None]] = []
        self._template = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self._template += tag == "template"
        if tag in {"meta", "link", "img", "rect"}:
            return
        name = given.get("data-field")
        self._open.append((name, given.get("data-stands")))
        if name and not self._template:
            self.fields.setdefault(name, []).append("")
            if "hidden" in given:
                self.hidden.add(name)

    def handle_endtag(self, tag: str) -> None:
        self._template -= tag == "template"
        if tag not in {"meta", "link", "img", "rect"}:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        name = self._open[-1][0] if self._open else None
        for inner in [inner for _, inner in self._open if inner]:
            self.stands[inner] = self.stands.get(inner, "") + data
        if name and not self._template:
            self.fields[name][-1] += data

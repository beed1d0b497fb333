"""What happens while a recording is played, for programs (JSON), and in sentences for people."""

from __future__ import annotations

import time

import msgspec

from slackwater.core.messages import Change, Resource, State
from slackwater.views.change_lines import change_lines
from slackwater.views.pool import WORDS, duration, milliseconds


class Event(msgspec.Struct, tag_field="event", omit_defaults=True, kw_only=True):
    """Base of all; `at_s` is seconds since the recording's first Sample."""

    at_s: float = 0.0


class Page(Event, tag="page"):
    """Where the dashboard is."""

    url: str


class Plays(Event, tag="plays"):
    """How the recording is played."""

    seconds: float
    speed: float
    """Times as fast as it happened."""
    again: bool
    """Again and again, until it is ended."""
    stays: bool
    """The page stays when it is over."""

    @property
    def sentence(self) -> str:
        how = "as fast as it happened" if self.speed == 1.0 else f"{self.speed:g} times as fast as it happened"
        often = "again and again until Ctrl-C" if self.again else "once"
        stays = "; the page stays until Ctrl-C" if self.stays and not self.again else ""
        return f"A recording of {self.seconds:.0f} s plays {how}, {often}{stays}."


class Again(Event, tag="again"):
    """The recording begins anew; `at_s` is 0 then."""

    round: int
    """2 is the second time."""


class Opened(Event, tag="recording"):
    """What is played."""

    description: str
    recorded_unix_s: float
    seconds: float
    nodes: list[str]
    noises: dict[str, str]
    """Each kind of noise in it, in words."""
    model: str
    """The detector's model."""
    law: str
    balance: str


class Noise(Event, tag="noise"):
    """What was really done to a node when it was recorded. The detector does not see it."""

    node: str
    kind: str
    what: str
    """The kind in words."""
    begins: bool


class EpisodeBegin(Event, tag="episode"):
    """The detector's state of a node became another one that is not calm."""

    node: str
    state: State
    resource: Resource | None
    because: list[str]


class EpisodeEnd(Event, tag="episode_end"):
    """The node is calm again."""

    node: str
    state: State
    """What it was until now."""
    lasted_s: float
    p95_before_ms: float | None
    """Median of its p95 response times in the seconds before."""
    p95_during_ms: float | None
    """The same during the episode, with unchanged weights."""
    because: list[str]


class WouldChange(Event, tag="would_change"):
    """What lbengine would have done."""

    change: Change


class End(Event, tag="end"):
    """The recording is over, and how the detector did."""

    noises: int
    found: int
    """Noises during which their node was in `interference`."""
    delay_s: float | None
    """Median time from a noise's begin to that state."""
    false_episodes: int
    changes: int
    """Changes that would have been made."""
    description: str = ""
    """How and on what machine it was recorded."""


class Next(Event, tag="next"):
    """What to do next."""

    steps: list[str]


_INDENT = " " * 12


def _at(at_s: float) -> str:
    return f"{at_s:7.1f} s   "


def lines(event: Event) -> list[str]:
    """An event as lines for people."""
    match event:
        case WouldChange():
            change = change_lines([event.change])[0]
            done = f"{_at(event.at_s)}would have been done: {change.what}"
            return [done, f"{_INDENT}because {change.reason}"]
        case Page():
            also = f"slackwater status --url {event.url.rstrip('/')}"
            return [
                f"The page: {event.url} (until Ctrl-C)",
                f"In another terminal: {also} (and so `log`, `why host1`, `week`)",
            ]
        case Plays():
            return [event.sentence, ""]
        case Again():
            return ["", f"{_at(0.0)}the recording from its beginning, round {event.round}"]
        case Opened():
            day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(event.recorded_unix_s))
            return [
                f"This is a recording: {event.seconds:.0f} s of a laboratory's {len(event.nodes)} web servers"
                f" ({', '.join(event.nodes)}), made on {day}.",
                "Noise was made beside them on purpose: "
                + "; ".join(f"`{kind}` ({what})" for kind, what in event.noises.items())
                + ".",
                "Slackwater is not told when. It watches as on your site in observe mode, and says what it would do.",
                "Nothing of this machine is measured or changed.",
                "",
            ]
        case Noise():
            did = f"`{event.kind}` began beside {event.node}: {event.what}"
            ended = f"`{event.kind}` beside {event.node} ended"
            line = f"{_at(event.at_s)}[noise, as recorded] {did if event.begins else ended}"
            return ["", line] if event.begins else [line]
        case EpisodeBegin():
            taken = f" ({event.resource})" if event.resource not in (None, "unclear") else ""
            return [
                f"{_at(event.at_s)}{event.node}: {WORDS[event.state]}{taken}",
                *(f"{_INDENT}because {reason}" for reason in event.because[:1]),
            ]
        case EpisodeEnd():
            cost = ""
            if event.p95_before_ms is not None and event.p95_during_ms is not None:
                cost = f"; its p95 was {milliseconds(event.p95_before_ms)} before and"
                cost += f" {milliseconds(event.p95_during_ms)} meanwhile, with unchanged weights"
            was = f"{WORDS[event.state]} for {duration(event.lasted_s)}"
            return [f"{_at(event.at_s)}{event.node}: calm again, after {was}{cost}"]
        case End():
            delay = f", {event.delay_s:.2f} s after they began (median)" if event.delay_s is not None else ""
            return [
                "",
                f"{event.found} of {event.noises} noises were found{delay}; {event.false_episodes} false episodes;"
                f" {event.changes} changes of a weight would have been made.",
                "This part was chosen because its noises differ and are strong. How often weaker ones are missed:"
                " docs/results/detector-scores.md",
                f"How it was recorded: {event.description}.",
            ]
        case Next():
            return ["", "Next:", *(f"  {step}" for step in event.steps)]
    return []

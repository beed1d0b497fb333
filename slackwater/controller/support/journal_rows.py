"""What the bundle has of the journal: Changes, episodes, the last messages, and some minutes of series."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slackwater.controller.support.reading import NotRead
from slackwater.controller.support.scrub import REMOVED
from slackwater.core import messages
from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.core.messages import Change
from slackwater.views.why import episodes

MOST_CHANGES = 10_000
EPISODES_S = 30 * 86400.0
SERIES_S, STEP_S = 600.0, 1.0
MOST_NODES = 40
"""Series of so many nodes of a pool; those with the last episodes come first."""


def rows(state_dir: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each file, the most useful first. Raises NotRead."""
    path = journal_path(state_dir)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise NotRead("journal.sqlite is no regular file; a symbolic link is not followed")
        with Journal.open(path, read_only=True) as journal:
            yield from _rows(journal)
    except FileNotFoundError:
        raise NotRead(f"{path} is not there") from None
    except OSError as error:
        raise NotRead(f"{path}: {error.strerror}") from None
    except JournalError as error:
        raise NotRead(str(error)) from None


def _rows(journal: Journal) -> Iterator[tuple[str, str]]:
    pools = journal.pools()
    counts = {f"{pool} {what}": count for (pool, what), count in journal.kinds_of_change().items()}
    about = {"file_bytes": journal.file_bytes(), "used_bytes": journal.used_bytes(), "pools": pools, "changes": counts}
    yield "journal/about.json", _json(about)
    for pool in pools:
        yield (
            f"journal/{pool}-latest.json",
            _json(
                {
                    "cycle": journal.latest_cycle(pool),
                    "verdicts": journal.latest_verdicts(pool),
                    "samples": journal.latest_samples(pool),
                    "knobs": {node: knobs for node, (knobs, _) in journal.latest_knobs(pool).items()},
                    "received_unix_s": {kind: journal.received(kind, pool) for kind in ("sample", "verdict", "cycle")},
                }
            ),
        )
    changes = map(_without_note, reversed(journal.changes(limit=MOST_CHANGES)))
    yield "journal/changes.jsonl", "".join(f"{messages.encode(change).decode()}\n" for change in changes)
    for pool in pools:
        ends = [*journal.received("sample", pool).values(), *journal.received("cycle", pool).values()]
        if not ends:
            continue
        listed = episodes(journal, pool, max(ends) - EPISODES_S)
        for episode in listed:
            if episode.marked is not None and episode.marked.note:
                episode.marked.note = REMOVED
        yield (
            f"journal/{pool}-episodes.jsonl",
            "".join(f"{msgspec.json.encode(episode).decode()}\n" for episode in listed),
        )
        noisy = list(dict.fromkeys(episode.node for episode in reversed(listed)))
        nodes = list(dict.fromkeys([*noisy, *sorted(journal.latest_samples(pool))]))[:MOST_NODES]
        cycle = journal.latest_cycle(pool)
        times = [sample.time_unix_s for sample in journal.latest_samples(pool).values()]
        until = max([*times, *([cycle.time_unix_s] if cycle is not None else [])], default=max(ends)) + STEP_S
        series = journal.history(pool, until - SERIES_S, STEP_S, until_unix_s=until, nodes=nodes)
        yield f"journal/{pool}-series.json", _json(series)


def _without_note(change: Change) -> Change:
    """A note on an episode is for the site's own people."""
    private = change.what == "mark_episode" and change.why
    return msgspec.structs.replace(change, why=REMOVED) if private else change


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode() + "\n"

"""Follows the journal, and gives a collector what is new. The journal is the queue: nothing waits in memory."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path

from slackwater.core.bus.bus import without_password
from slackwater.core.config import PoolSettings
from slackwater.core.files import bytes_of, write_whole
from slackwater.core.journal.journal import Journal, JournalError
from slackwater.core.otlp_collector import Collector
from slackwater.views.why import AFTER_S, Episode, episodes, with_changes
from slackwater.web.metric_histograms import server_histograms
from slackwater.web.metric_values import values
from slackwater.web.otlp.convert import metrics_data, resource_of, spans_of
from slackwater.web.reader import JournalReader

log = logging.getLogger("slackwater.otlp")

LOOK_BACK_S = 86400.0
"""Episodes that ended longer ago are not sent any more."""
CLOCKS_S = 300.0
"""Longest time between a node's last Verdict in an episode and the next state."""
AT_ONCE = 50
"""Most episodes in one sending; those that ended at the same moment go together."""
FILE = "otlp.json"


class Sender:
    """Sends the metrics as they are, and each episode once its last Changes are in the journal, a minute after its end.

    How far it came is in `state_dir`, so that a restart sends nothing twice and leaves nothing out.
    """

    def __init__(self, reader: JournalReader, collector: Collector) -> None:
        self._reader = reader
        self._collector = collector
        self._resource = resource_of(socket.gethostname())
        self._path = Path(reader.settings.state_dir) / FILE
        self._sent_until_unix_s = self._read()
        self._place = without_password(reader.settings.otlp.endpoint)
        self._problems = {"metrics": "", "episodes": ""}

    def send_metrics(self) -> None:
        data = metrics_data(values(self._reader), server_histograms(self._reader), self._reader.clock(), self._resource)
        self._note("metrics", self._collector.take_metrics(data))

    def send_episodes(self) -> None:
        now_unix_s = self._reader.clock()
        if now_unix_s - LOOK_BACK_S > self._sent_until_unix_s:
            log.warning("episodes that ended over %.0f h ago were not taken, and are not sent", LOOK_BACK_S / 3600)
            self._sent_until_unix_s = now_unix_s - LOOK_BACK_S
        until_unix_s = now_unix_s - AFTER_S
        if until_unix_s <= self._sent_until_unix_s:  # the clock was set back
            return
        try:
            with self._reader.journal() as journal:
                ended = self._ended(journal, until_unix_s)
                if len(ended) > AT_ONCE:
                    until_unix_s = end_of(ended[AT_ONCE - 1])
                    ended = [(pool, episode) for pool, episode in ended if end_of((pool, episode)) <= until_unix_s]
                with_their_changes = [with_changes(journal, episode, pool.servers) for pool, episode in ended]
        except JournalError as error:
            self._note("episodes", str(error))
            return
        spans = [span for episode in with_their_changes for span in spans_of(episode, self._resource)]
        problem = self._collector.take_spans(spans) if spans else ""
        self._note("episodes", problem)
        if not problem:
            self._write(until_unix_s)

    def _ended(self, journal: Journal, until_unix_s: float) -> list[tuple[PoolSettings, Episode]]:
        """The episodes that ended since the last one that was sent, the first that ended first."""
        since = self._sent_until_unix_s
        ended = [
            (pool, episode)
            for pool in self._reader.settings.pool
            for episode in episodes(journal, pool.name, since - CLOCKS_S)
            if episode.until_unix_s is not None and since < episode.until_unix_s <= until_unix_s
        ]
        return sorted(ended, key=end_of)

    def _note(self, kind: str, problem: str) -> None:
        """Logs a failure once, not at each try, and its end."""
        if problem and not self._problems[kind]:
            log.warning("%s were not taken by %s: %s", kind, self._place, problem)
        elif self._problems[kind] and not problem:
            log.info("%s are taken again by %s", kind, self._place)
        self._problems[kind] = problem

    def _read(self) -> float:
        """Unix seconds; at the very first start that is now: what was before is not sent."""
        try:
            return float(json.loads(bytes_of(self._path))["sent_until_unix_s"])
        except (OSError, ValueError, KeyError, TypeError):
            self._write(now := self._reader.clock() - AFTER_S)
            return now

    def _write(self, until_unix_s: float) -> None:
        self._sent_until_unix_s = until_unix_s
        try:
            write_whole(self._path, f"{json.dumps({'sent_until_unix_s': until_unix_s})}\n".encode())
        except OSError as error:
            log.error("%s: %s; a restart would send episodes again", self._path, error.strerror)


def end_of(ended: tuple[PoolSettings, Episode]) -> float:
    until_unix_s = ended[1].until_unix_s
    assert until_unix_s is not None
    return until_unix_s

"""What is kept of reloads: lines in the log, a Change for each pool in the journal, and the state for `/metrics`."""

from __future__ import annotations

import logging
import threading
import time
import uuid

import msgspec

from slackwater.controller.supervise.reload import ReloadOutcome
from slackwater.core.config import ControllerSettings
from slackwater.core.journal.journal import Journal, JournalError, journal_path
from slackwater.core.messages import VERSION, Change

log = logging.getLogger("slackwater.reload")

MOST_TEXT = 2000
"""The longest `why` of a reload's Change."""


class Reloads(msgspec.Struct, kw_only=True, frozen=True):
    """The reloads of one `serve`, as they stand in serve.json."""

    last_success_unix_s: float
    """When settings were last put in force or found unchanged; the start counts."""
    last_successful: bool = True
    last: ReloadOutcome | None = None

    def after(self, outcome: ReloadOutcome) -> Reloads:
        success_unix_s = self.last_success_unix_s if outcome.error else outcome.time_unix_s
        return Reloads(last_success_unix_s=success_unix_s, last_successful=not outcome.error, last=outcome)


def to_log(outcome: ReloadOutcome) -> None:
    """A line for each setting, and one for the whole."""
    if outcome.error:
        log.error("reload refused, the previous settings stay in force: %s", outcome.error)
        return
    for difference in outcome.changed:
        log.info("reload: %s", difference)
    count = len(outcome.changed)
    settings = "nothing differs" if not count else f"{count} setting{'' if count == 1 else 's'} changed"
    log.info("reload done: %s; started anew: %s", settings, ", ".join(outcome.restarted) or "nothing")


def to_journal(settings: ControllerSettings, outcome: ReloadOutcome) -> None:
    """Records a Change for each pool that a difference belongs to; a difference without a pool concerns all. Returns
    before they are written."""
    changes = []
    for pool in dict.fromkeys(
        [*(known.name for known in settings.pool), *(difference.pool for difference in outcome.changed)]
    ):
        texts = [str(difference) for difference in outcome.changed if difference.pool in ("", pool)]
        if pool and texts:
            why = "; ".join(texts)[:MOST_TEXT]
            changes.append(
                Change(VERSION, uuid.uuid4().hex, pool, time.time(), "reload", pool, None, None, why, "serve", True)
            )
    threading.Thread(target=_record, args=(settings, changes), name="reload record", daemon=True).start()


def _record(settings: ControllerSettings, changes: list[Change]) -> None:
    try:
        with Journal.open(journal_path(settings.state_dir)) as journal:
            journal.record(*changes)
    except JournalError as error:
        log.error("the reload is not in the journal: %s", error)

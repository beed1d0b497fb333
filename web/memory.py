"""A memory limit of the dashboard's own, so that whatever its visitors ask for, the rest of the controller has room."""

from __future__ import annotations

import logging
import resource
import threading
from pathlib import Path

log = logging.getLogger("slackwater.web")

MOST_BYTES = 512 << 20
"""Most bytes of the process's data; the unit has 1 GiB for all parts. Beyond it one request gets a MemoryError, and the
process goes on."""
STACK_BYTES = 1 << 20
"""The stack of each thread: it counts as a whole, and the usual 8 MiB of 88 threads would be more than the limit."""
FIRST_TO_GO = 500
"""Where memory is short all the same, the kernel ends the dashboard first: proc(5), oom_score_adj."""
OOM_SCORE = Path("/proc/self/oom_score_adj")


def limit() -> None:
    """Limits the present process, and the threads that start from now on. What cannot be set is logged."""
    threading.stack_size(STACK_BYTES)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        if int(OOM_SCORE.read_text()) < FIRST_TO_GO:
            OOM_SCORE.write_text(str(FIRST_TO_GO))
    except (OSError, ValueError) as error:
        log.warning("the dashboard has no memory limit of its own: %s", error)

"""The controller's metrics that are histograms. `/metrics` and OTLP show the same."""

from __future__ import annotations

from collections.abc import Iterator

from slackwater.core.config import PoolSettings
from slackwater.core.journal.journal import JournalError
from slackwater.core.response_times import Histogram
from slackwater.web.reader import JournalReader

SERVER_RESPONSE = (
    "slackwater_server_response_seconds",
    ("pool", "backend", "server"),
    "Response times of a server's requests, as its balancer sees them on the wire.",
)
"""Name, labels and help."""


def server_histograms(reader: JournalReader) -> Iterator[tuple[tuple[str, ...], Histogram]]:
    """The labels' values and the histogram of each server that had requests within an hour; nothing where the journal
    cannot be read."""
    try:
        with reader.journal() as journal:
            for pool in reader.settings.pool:
                for (node, server), times in journal.response_times(pool.name).items():
                    # A node's Samples count for its own servers alone.
                    if times.total.counts and pool.servers.get(server, server) == node:
                        yield (pool.name, backend_of(pool), server), times.total
    except JournalError:
        return


def backend_of(pool: PoolSettings) -> str:
    """HAProxy's name of the backend, or IPVS's service."""
    return pool.driven.get("backend") or pool.driven.get("service") or pool.name

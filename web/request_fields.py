"""Requests with old names of fields: accepted for one release, with a warning in the answer and the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flask import after_this_request
from werkzeug.wrappers import Response

from slackwater import renamed

log = logging.getLogger("slackwater.web")


def new_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """A request's query or body under today's names. Raises renamed.BothGiven, a ValueError."""
    fields, found = renamed.with_new_names(given, renamed.REQUEST_FIELDS)
    if found:
        text = "; ".join(renamed.warning(old, renamed.REQUEST_FIELDS[old]) for old in found)
        log.warning("%s", text)

        @after_this_request
        def warn(answer: Response) -> Response:
            answer.headers["Warning"] = f'299 slackwater "{text}"'
            return answer

    return fields

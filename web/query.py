"""Numbers in the query strings of pages and API."""

from __future__ import annotations

import re

from flask import abort, request

from slackwater.web.openapi import FINEST_S

MAX_UNIX_S = 4e9
LONGEST_S = 400 * 86400.0
"""The longest time that is shown."""


def query_number(name: str, default: float, most: float, least: float = FINEST_S) -> float:
    """A number of the query string; aborts with 400 if it is none, or beyond the limits."""
    text = request.args.get(name)
    if text is None:
        return default
    value = float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?", text) else -1.0
    if not least <= value <= most:
        abort(400, f"{name}: expected a number from {least:g} to {most:g}, got `{text}`")
    return value

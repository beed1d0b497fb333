"""The pages, complete without a script; `static/js` keeps them live."""

from __future__ import annotations

from datetime import UTC, datetime

from flask import Blueprint, render_template

from web.reader import PLOT_S, Reader


def blueprint(reader: Reader) -> Blueprint:
    """The pages over this reader."""
    pages = Blueprint("pages", __name__)
    pages.add_app_template_filter(utc, "utc")
    pages.add_app_template_filter(iso, "iso")

    @pages.get("/")
    def overview() -> tuple[str, int]:
        event = reader.event()
        page = render_template("overview.html", event=event, plot_min=round(PLOT_S / 60))
        return page, 503 if event.error else 200

    return pages


def utc(time_unix_s: float) -> str:
    """`2026-11-20 07:22:30 UTC`: for viewers without a script; with one the page shows their own zone."""
    return _utc(time_unix_s, "%Y-%m-%d %H:%M:%S UTC")


def iso(time_unix_s: float) -> str:
    """For the `datetime` attribute."""
    return _utc(time_unix_s, "%Y-%m-%dT%H:%M:%SZ")


def _utc(time_unix_s: float, pattern: str) -> str:
    try:
        return datetime.fromtimestamp(time_unix_s, UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return f"{time_unix_s:g} s"

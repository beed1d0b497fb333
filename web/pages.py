"""The pages, complete without a script; `static/js` keeps them live."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from flask import Blueprint, Response, abort, current_app, render_template, request, url_for
from werkzeug.exceptions import HTTPException, SecurityError
from werkzeug.sansio.response import Response as BaseResponse

from slackwater.config import PoolSettings
from slackwater.journal.journal import JournalError
from slackwater.messages import Sample
from slackwater.renamed import BothGiven
from slackwater.views.pool import SYMBOLS, WORDS
from web import audit, episodes
from web.controls import PINS_MIN
from web.model import Models
from web.reader import Reader
from web.request_fields import new_names
from web.settings_page import settings_page

RANGES = {"5min": (300.0, 1.0), "1h": (3600.0, 10.0), "6h": (21600.0, 60.0), "1d": (86400.0, 120.0)}
RANGES |= {"7d": (7 * 86400.0, 3600.0), "90d": (90 * 86400.0, 7200.0)}
"""What the plots show: seconds back, and their step."""
EPISODES_S = 7 * 86400.0


def blueprint(reader: Reader) -> Blueprint:
    """The pages over this reader."""
    pages = Blueprint("pages", __name__)
    pages.add_app_template_filter(utc, "utc")
    pages.add_app_template_filter(iso, "iso")
    models = Models(reader.settings.detector.model)

    def named(name: str) -> PoolSettings:
        pool = reader.pool(name)
        if pool is None:
            abort(404, f"There is no pool `{name}`. The configuration has: {', '.join(known())}.")
        return pool

    def known() -> list[str]:
        return [pool.name for pool in reader.settings.pool]

    @pages.app_context_processor
    def everywhere() -> dict[str, Any]:
        return {"pool_names": known(), "now_unix_s": reader.clock(), "pins_min": PINS_MIN}

    @pages.get("/")
    def overview() -> tuple[str, int]:
        event = reader.event()
        return render_template("overview.html", event=event), 503 if event.error else 200

    @pages.get("/pools/<pool>")
    def pool(pool: str) -> tuple[str, int]:
        named(pool)
        event = reader.event(pool)
        shown = request.args.get("last", "5min")
        if shown not in RANGES:
            abort(400, f"last: expected one of {', '.join(RANGES)}")
        found: list[episodes.Listed] = []
        if not event.error:
            with reader.journal() as journal:
                found = episodes.listed(journal, pool, reader.clock() - EPISODES_S, reader.clock(), most=20)
        last_s, step_s = RANGES[shown]
        page = render_template(
            "pool.html", event=event, pool=event.pools[0], episodes=found, ranges=RANGES, shown=shown,
            last_s=last_s, step_s=step_s,
        )  # fmt: skip
        return page, 503 if event.error else 200

    @pages.get("/pools/<pool>/episodes/<node>/<int:since_ms>")
    def episode(pool: str, node: str, since_ms: int) -> str:
        settings, now = named(pool), reader.clock()
        with reader.journal() as journal:
            told = episodes.find(journal, settings, node, since_ms)
            if told is None:
                abort(404, f"No episode of {node} that began then is in the journal.")
            page = episodes.page(journal, reader.settings, settings, told, now)
        return render_template("episode.html", episode=page, grafana=_grafana(reader.settings.web.grafana_url, page))

    @pages.get("/episodes")
    def all_episodes() -> str:
        with reader.journal() as journal:
            found = [
                one
                for name in known()
                for one in episodes.listed(journal, name, reader.clock() - 90 * 86400.0, reader.clock())
            ]
        found.sort(key=lambda one: one.since_unix_s, reverse=True)
        return render_template("episodes.html", episodes=found)

    @pages.get("/changes")
    def changes() -> str:
        try:
            asked = audit.filter_of(new_names(request.args))
        except (audit.FilterError, BothGiven) as error:
            abort(400, str(error))
        with reader.journal() as journal:
            offset = (asked.page - 1) * audit.ON_A_PAGE
            found = audit.find(journal, asked, reader.clock(), audit.ON_A_PAGE + 1, offset)
            kinds = sorted({what for _, what in journal.kinds_of_change()})
        query = {key: value for key, value in msgspec.structs.asdict(asked).items() if value and key != "page"}
        links = {
            "older": url_for("pages.changes", page=asked.page + 1, **query) if len(found) > audit.ON_A_PAGE else "",
            "newer": url_for("pages.changes", page=asked.page - 1, **query) if asked.page > 1 else "",
            "csv": url_for("api.all_changes_csv", **query),
            "json": url_for("api.all_changes", **query),
        }
        lines = [audit.line(change) for change in found[: audit.ON_A_PAGE]]
        return render_template(
            "changes.html", asked=asked, lines=lines, kinds=kinds, links=links, times=list(audit.SINCE_S)
        )

    @pages.get("/detector")
    def detector() -> str:
        nodes = []
        with reader.journal() as journal:
            for pool in reader.settings.pool:
                samples = journal.latest_samples(pool.name)
                verdicts = journal.latest_verdicts(pool.name)
                for row in reader.view(journal, pool).rows:
                    verdict = verdicts.get(row.node)
                    nodes.append(
                        {
                            "pool": pool.name,
                            "row": row,
                            "symbol": SYMBOLS[row.state],
                            "word": WORDS[row.state],
                            "verdict": verdict,
                            "resource": verdict.resource if verdict is not None else None,
                            "absent": _absent(samples.get(row.node)),
                        }
                    )
        return render_template("detector.html", model=models.get(), nodes=nodes)

    @pages.get("/settings")
    def settings() -> str:
        return render_template("settings.html", page=settings_page(reader.settings))

    @pages.app_errorhandler(HTTPException)
    def refused(error: HTTPException) -> BaseResponse | HTTPException:
        if isinstance(error, SecurityError):  # a foreign host name: there is no page to lead to
            return error
        answer = error.get_response()  # with its headers, such as Allow
        if request.path.startswith(("/api/", "/metrics", "/events")):
            answer.set_data(msgspec.json.encode({"error": error.description}))
            answer.mimetype = "application/json"
        else:
            page = render_template("error.html", code=error.code, title=error.name, text=error.description)
            answer.set_data(page)
        return answer

    @pages.app_errorhandler(JournalError)
    def unreadable(error: JournalError) -> Response:
        page = render_template("error.html", code=503, title="The journal cannot be read", text=str(error))
        return Response(page, 503, mimetype="text/html")

    @pages.app_errorhandler(Exception)
    def broken(error: Exception) -> Response:
        current_app.logger.exception("the page %s failed", request.path)
        text = "This page failed. The log of the dashboard says why; the controller itself goes on."
        page = render_template("error.html", code=500, title=type(error).__name__, text=text)
        return Response(page, 500, mimetype="text/html")

    return pages


def _grafana(url: str, page: episodes.EpisodePage) -> str:
    """The time around an episode in Grafana (https://grafana.com/docs/grafana/latest/dashboards/share-dashboards-panels/);
    empty without one."""
    since_ms, until_ms = round(page.plot_since_unix_s * 1000), round(page.plot_until_unix_s * 1000)
    return f"{url}?{urlencode({'from': since_ms, 'to': until_ms, 'var-pool': page.pool})}" if url else ""


def _absent(sample: Sample | None) -> list[tuple[str, str]]:
    if sample is None:
        return [("everything", "no Sample has come")]
    return sorted(sample.absent.items())


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

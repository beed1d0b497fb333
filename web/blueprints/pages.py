"""The pages. They are complete without a script; `static/js` keeps them live."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from flask import Blueprint, abort, render_template, request, url_for

from slackwater.core.messages import Sample
from slackwater.views import week as weeks
from slackwater.views.change_lines import change_lines
from slackwater.views.chronic import ADVICE, LEAST_DAY_S, MOST_MACHINES
from slackwater.views.harm import TIMES_CALM, UNKNOWN
from slackwater.views.pool import SYMBOLS, WORDS, duration, milliseconds
from slackwater.views.why import MARKS
from slackwater.web.blueprints.controls import PINS_MIN
from slackwater.web.content import audit, episodes
from slackwater.web.content import governor as governors
from slackwater.web.content.pool import episode_url, number
from slackwater.web.content.settings import settings_page
from slackwater.web.context import context, pool_settings
from slackwater.web.query import LONGEST_S, MAX_UNIX_S, query_number

RANGES = {"5min": (300.0, 1.0), "1h": (3600.0, 10.0), "6h": (21600.0, 60.0), "1d": (86400.0, 120.0)}
RANGES |= {"7d": (7 * 86400.0, 3600.0), "90d": (90 * 86400.0, 7200.0)}
"""What the plots show: seconds back, and their step."""
CHOSEN_S, LEAST_CHOSEN_S = 900.0, 10.0
"""The length of a time that a link names by its end alone, and the shortest that is shown."""
STEPS_S = (1.0, 5.0, 10.0, 60.0, 120.0, 600.0, 3600.0, 7200.0, 43200.0)
MOST_STEPS = 720
EPISODES_S = 7 * 86400.0
WEEK_TITLES = {
    (False, True): "What it would have done",
    (True, False): "What it did",
    (True, True): "What it did, and what it would have done",
}
"""By whether weights were set, and whether some would have been: a pool may observe first, and act then."""

pages = Blueprint("pages", __name__)
for unit in (duration, milliseconds):
    pages.add_app_template_filter(unit)
pages.add_app_template_filter(number, "number")
pages.add_app_template_filter(episode_url, "episode_url")


@pages.app_context_processor
def everywhere() -> dict[str, Any]:
    """What every template may use."""
    return {
        "pool_names": context().pool_names,
        "now_unix_s": context().reader.clock(),
        "pins_min": PINS_MIN,
        "marks": MARKS,
        "standing": context().reader.health().standing if context().gate.may_look() else None,
        "governor_is_on": context().settings.governor.mode != "off",
    }


@pages.app_template_filter()
def utc(time_unix_s: float) -> str:
    """`2026-11-20 07:22:30 UTC`: for viewers without a script; with one the page shows their own zone."""
    return _utc(time_unix_s, "%Y-%m-%d %H:%M:%S UTC")


@pages.app_template_filter()
def iso(time_unix_s: float) -> str:
    """The time as the `datetime` attribute has it."""
    return _utc(time_unix_s, "%Y-%m-%dT%H:%M:%SZ")


def _utc(time_unix_s: float, pattern: str) -> str:
    try:
        return datetime.fromtimestamp(time_unix_s, UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return f"{time_unix_s:g} s"


@pages.get("/")
def overview() -> tuple[str, int]:
    event = context().reader.event()
    return render_template("overview.html", event=event, standing=event.standing), 503 if event.error else 200


@pages.get("/pools/<pool>")
def pool(pool: str) -> tuple[str, int]:
    pool_settings(pool)
    reader = context().reader
    event = reader.event(pool)
    shown = request.args.get("last", "5min")
    if shown not in RANGES:
        abort(400, f"last: expected one of {', '.join(RANGES)}")
    listed: list[episodes.Listed] = []
    if not event.error:
        with reader.one_request() as journal:
            listed = episodes.listed(journal, pool, reader.clock() - EPISODES_S, reader.clock(), most=20)
    until_unix_s = query_number("until_unix_s", 0.0, most=MAX_UNIX_S)
    last_s, step_s = RANGES[shown]
    if until_unix_s:
        shown, last_s = "", query_number("last_s", CHOSEN_S, most=LONGEST_S, least=LEAST_CHOSEN_S)
        step_s = _step_s(last_s, reader.clock() - until_unix_s)
    page = render_template(
        "pool.html", event=event, standing=event.standing, pool=event.pools[0], episodes=listed, ranges=RANGES,
        shown=shown, last_s=last_s, step_s=step_s, until_unix_s=until_unix_s,
    )  # fmt: skip
    return page, 503 if event.error else 200


def _step_s(last_s: float, ago_s: float) -> float:
    """The plots' step for a time that somebody chose, and that ended `ago_s` ago. Of old times minutes are kept."""
    least_s = 60.0 if ago_s + last_s > context().settings.journal.keep_samples_h * 3600.0 else 0.0
    return next((step for step in STEPS_S if step >= least_s and last_s / step <= MOST_STEPS), STEPS_S[-1])


@pages.get("/pools/<pool>/episodes/<node>/<since_ms>")
def episode(pool: str, node: str, since_ms: str) -> str:
    pool_of, settings, reader = pool_settings(pool), context().settings, context().reader
    with reader.one_request() as journal:
        story = episodes.find(journal, pool_of, node, int(since_ms)) if re.fullmatch("[0-9]{1,15}", since_ms) else None
        if story is None:
            abort(404, f"No episode of {node} that began then is in the journal.")
        page = episodes.page(journal, settings, pool_of, story, reader.clock())
    return render_template("episode.html", episode=page, grafana=_grafana(settings.web.grafana_url, page))


@pages.get("/episodes")
def all_episodes() -> str:
    reader = context().reader
    now_unix_s = reader.clock()
    with reader.one_request() as journal:
        listed = [
            row
            for name in context().pool_names
            for row in episodes.listed(journal, name, now_unix_s - 90 * 86400.0, now_unix_s)
        ]
    listed.sort(key=lambda row: row.since_unix_s, reverse=True)
    return render_template("episodes.html", episodes=listed)


@pages.get("/week")
def week() -> str:
    text = request.args.get("days", str(weeks.WEEK_DAYS))
    if text not in map(str, weeks.DAYS):
        abort(400, f"days: expected one of {', '.join(map(str, weeks.DAYS))}, got `{text}`")
    reader, settings = context().reader, context().settings
    with reader.one_request() as journal:
        report = weeks.week(journal, settings, settings.pool, int(text), reader.clock(), reader.measured_by)
    acting = [pool.acting for pool in report.pools if pool.acting is not None]
    made = any(acted.made for acted in acting)
    observes = any(pool.mode != "act" for pool in report.pools)
    would = (not made and (observes or not acting)) or any(acted.weight_changes for acted in acting)
    title = WEEK_TITLES[made or not would, would]
    return render_template(
        "week.html", title=title, made=made, observes=observes, week=report, spans=weeks.DAYS,
        unknown=UNKNOWN, times_calm=TIMES_CALM, advice=ADVICE, most_machines=MOST_MACHINES, least_day_s=LEAST_DAY_S,
        replace=settings.replace,
        lease_s=settings.lbengine.lease_s, keep_samples_h=settings.journal.keep_samples_h,
        symbols=SYMBOLS, words=WORDS, back=request.full_path.rstrip("?"),
    )  # fmt: skip


@pages.get("/changes")
def changes() -> str:
    reader = context().reader
    try:
        chosen = audit.filter_of(request.args)
    except audit.FilterError as error:
        abort(400, str(error))
    with reader.one_request() as journal:
        offset = (chosen.page - 1) * audit.ON_A_PAGE
        listed = audit.find(journal, chosen, reader.clock(), audit.ON_A_PAGE + 1, offset)
        kinds = sorted({what for _, what in journal.kinds_of_change()})
    query = {key: value for key, value in msgspec.structs.asdict(chosen).items() if value and key != "page"}
    links = {
        "older": url_for("pages.changes", page=chosen.page + 1, **query) if len(listed) > audit.ON_A_PAGE else "",
        "newer": url_for("pages.changes", page=chosen.page - 1, **query) if chosen.page > 1 else "",
        "csv": url_for("api.changes_csv", **query),
        "json": url_for("api.changes", **query),
    }
    lines = change_lines(listed[: audit.ON_A_PAGE], each=True)
    return render_template(
        "changes.html", chosen=chosen, lines=lines, kinds=kinds, links=links, times=list(audit.SINCE_S)
    )


@pages.get("/detector")
def detector() -> str:
    reader = context().reader
    nodes = []
    with reader.one_request() as journal:
        for pool in context().settings.pool:
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
    return render_template("detector.html", model=context().models.get(), nodes=nodes)


@pages.get("/governor")
def governor() -> str:
    reader, settings = context().reader, context().settings
    with reader.one_request() as journal:
        nodes = governors.rows(journal, settings, reader.clock())
        lines = governors.decisions(journal, [pool.name for pool in settings.pool], reader.clock())
    return render_template("governor.html", nodes=nodes, lines=lines, mode=settings.governor.mode)


@pages.get("/settings")
def settings() -> str:
    return render_template("settings.html", page=settings_page(context().settings))


def _grafana(url: str, page: episodes.EpisodePage) -> str:
    """The time around an episode in Grafana
    (https://grafana.com/docs/grafana/latest/dashboards/share-dashboards-panels/); empty without one."""
    since_ms, until_ms = round(page.plot_since_unix_s * 1000), round(page.plot_until_unix_s * 1000)
    return f"{url}?{urlencode({'from': since_ms, 'to': until_ms, 'var-pool': page.pool})}" if url else ""


def _absent(sample: Sample | None) -> list[tuple[str, str]]:
    if sample is None:
        return [("everything", "no Sample has come")]
    return sorted(sample.absent.items())

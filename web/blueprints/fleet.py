"""The page of all servers of all pools."""

from __future__ import annotations

import msgspec
from flask import Blueprint, abort, render_template, request, url_for

from slackwater.web.content import harm as harms
from slackwater.web.content.audit import FilterError
from slackwater.web.content.fleet import GROUPS, SORTS, arrange, filter_of
from slackwater.web.context import context

fleet = Blueprint("fleet", __name__)


@fleet.get("/fleet")
def show() -> tuple[str, int]:
    source = context().fleet
    try:
        chosen = filter_of(request.args)
    except FilterError as error:
        abort(400, str(error))
    event = source.event()
    harm = (
        harms.HarmMap(0.0, 0.0, 1.0, []) if event.error else source.harm(chosen.last, chosen.until or event.time_unix_s)
    )
    by_key = {f"{server.pool}/{server.node}": server for server in harm.servers}
    groups = arrange(event.servers, by_key, chosen)
    cells, more = harms.cells(harm)
    query = {key: value for key, value in msgspec.structs.asdict(chosen).items() if value}
    page = render_template(
        "fleet.html", event=event, chosen=chosen, groups=groups, harm=harm,
        shown=sum(len(group.servers) for group in groups),
        pool_paths={name: url_for("pages.pool", pool=name) for name in {server.pool for server in event.servers}},
        by_key=by_key, map_px=harms.map_px(len(harm.servers)), cells=cells, more=more,
        group_names=list(GROUPS), sort_names=list(SORTS),
        ranges={last: url_for("fleet.show", **{**query, "last": last}) for last in harms.RANGES},
        to_now=url_for("fleet.show", **{**query, "until": None}), narrower=harms.narrower(chosen.last),
        harm_url=url_for("api.fleet_harm", last=chosen.last, until_unix_s=chosen.until),
    )  # fmt: skip
    return page, 503 if event.error else 200

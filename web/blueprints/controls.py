"""Operators' commands, from a form or the API, as requests to lbengine.

Dangerous ones are confirmed: the first click leads to a page that describes the effect.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as BaseResponse

from slackwater.core.bus.bus import BusError
from slackwater.core.control import Refused, Request, request_of
from slackwater.web.access import path_on_this_site
from slackwater.web.content.episodes import find
from slackwater.web.context import context, operators_only, pool_settings

log = logging.getLogger("slackwater.web")
CONFIRM = {
    "pause": ("Pause", "The baseline weights are set at once, and Slackwater changes nothing until you resume."),
    "resume": ("Resume", "Slackwater starts balancing again; a server that was given another weight by hand keeps it."),
    "act": (
        "Act",
        "Slackwater will set weights by itself from now on.",
    ),
    "observe": ("Observe", "The baseline weights are set at once; from now on decisions are only recorded."),
}
PINS_MIN = (10, 30, 60, 240)

controls = Blueprint("controls", __name__)


def send(pool: str, fields: dict[str, Any]) -> str:
    """Has lbengine carry out a command in the name of the present operator; returns its answer.

    Aborts with 400 for a wrong command, 409 if lbengine refuses, 503 if it does not answer.
    """
    by = context().gate.who().name
    try:
        command = request_of({**fields, "by": by})
        if command.action == "mark_episode":
            _check_episode(pool, command)
        answer = context().send(pool, command)
    except ValueError as error:
        abort(400, str(error))
    except Refused as error:
        abort(409, str(error))
    except BusError as error:
        abort(503, f"lbengine cannot be reached: {error}")
    log.info("%s sent %s to pool %s", by, command.action, pool)
    return answer


def _check_episode(pool: str, command: Request) -> None:
    """Aborts with 404 if there is no such episode. Raises JournalError."""
    assert command.target is not None
    assert command.since_unix_s is not None
    with context().reader.one_request() as journal:
        if find(journal, pool_settings(pool), command.target, round(command.since_unix_s * 1000)) is None:
            abort(404, f"no episode of {command.target} that began then is in the journal")


@controls.get("/confirm/<word>")
@operators_only
def confirm(word: str) -> str:
    """Asks for a confirmation, for `pool` of the query or for all pools."""
    if word not in CONFIRM:
        abort(404, f"nothing to confirm is called `{word}`")
    title, effect = CONFIRM[word]
    pools, names = _pools(request.args.get("pool", "*")), context().pool_names
    return render_template("confirm.html", word=word, title=title, effect=effect, pools=pools, names=names)


@controls.post("/control")
@operators_only
def carry_out() -> BaseResponse:
    """Sends the form's command to each pool named, flashes the answers, and leads back."""
    fields = _fields(request.form.to_dict())
    for pool in _pools(request.form.get("pool", "")):
        try:
            flash(send(pool, fields), "done")
        except HTTPException as error:
            flash(f"{pool}: {error.description}", "refused")
    return redirect(path_on_this_site(request.form.get("back", "")) or url_for("pages.overview"), 303)


def _pools(pool: str) -> list[str]:
    """The pool of this name, or all for `*`; aborts with 404 if there is none."""
    names = context().pool_names
    if pool != "*" and pool not in names:
        abort(404, f"no pool `{pool}`; the configuration has: {', '.join(names)}")
    return names if pool == "*" else [pool]


def _fields(form: dict[str, str]) -> dict[str, Any]:
    """The form's texts as a request's values; a number that is none stays text, and is refused as one later."""
    texts = {key: text.strip() for key, text in form.items() if text.strip()}
    fields: dict[str, Any] = {key: texts[key] for key in ("action", "why", "target", "mode", "mark") if key in texts}
    for key, field, factor in (("weight", "weight", 1), ("for_s", "for_min", 60)):
        if field in texts:
            fields[key] = int(texts[field]) * factor if _is_number(texts[field]) else texts[field]
    if "since_ms" in texts:
        fields["since_unix_s"] = int(texts["since_ms"]) / 1000 if _is_number(texts["since_ms"]) else texts["since_ms"]
    return fields


def _is_number(text: str) -> bool:
    return re.fullmatch("[0-9]{1,15}", text) is not None

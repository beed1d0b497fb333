"""The hand on the brake: each wish of an operator, from a form or the API, becomes a request to lbengine.

A dangerous one is asked twice: the first click leads to a page that says what will happen.
"""

from __future__ import annotations

import logging
from typing import Any

from flask import Blueprint, Response, abort, flash, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from slackwater.bus.bus import BusError
from slackwater.config import ControllerSettings
from slackwater.control import Refused, Request, request_of
from web.ask import Ask
from web.login import Gate
from web.request_fields import new_names

log = logging.getLogger("slackwater.web")
CONFIRM = {
    "pause": ("Pause", "The baseline weights are set at once, and Slackwater keeps its hands off until you resume."),
    "resume": ("Resume", "Slackwater takes up its work again; the weights of now become the baseline."),
    "act": ("Act", "Slackwater will set weights by itself from now on."),
    "observe": ("Observe", "The baseline weights are set at once; decisions are only recorded from now on."),
}
PINS_MIN = (10, 30, 60, 240)


class Unheard(Exception):
    """lbengine could not be asked, or refused; `status` is that of the answer."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def do(ask: Ask, pool: str, asked: dict[str, Any], by: str) -> str:
    """Has lbengine do it in the name of `by`; returns its sentence. Raises Unheard."""
    try:
        wish: Request = request_of({**new_names(asked), "by": by})
    except ValueError as error:
        raise Unheard(str(error), 400) from None
    try:
        said = ask(pool, wish)
    except Refused as error:
        raise Unheard(str(error), 409) from None
    except BusError as error:
        raise Unheard(f"lbengine cannot be asked: {error}", 503) from None
    log.info("%s asked for %s of pool %s", by, wish.action, pool)
    return said


def blueprint(settings: ControllerSettings, gate: Gate, ask: Ask) -> Blueprint:
    """The forms' targets."""
    controls = Blueprint("controls", __name__)
    names = [pool.name for pool in settings.pool]

    def named(pool: str) -> list[str]:
        if pool != "*" and pool not in names:
            abort(404, f"no pool `{pool}`; the configuration has: {', '.join(names)}")
        return names if pool == "*" else [pool]

    @controls.get("/confirm/<word>")
    @gate.operator
    def confirm(word: str) -> str:
        """Asks whether it is meant; `pool` of the query, or all pools."""
        if word not in CONFIRM:
            abort(404, f"nothing to confirm is called `{word}`")
        pools = named(request.args.get("pool", "*"))
        title, effect = CONFIRM[word]
        return render_template("confirm.html", word=word, title=title, effect=effect, pools=pools, names=names)

    @controls.post("/control")
    @gate.operator
    def carry_out() -> BaseResponse | Response:
        """Does it, for each pool named, says what came of it, and leads back."""
        asked = _asked(request.form.to_dict())
        for pool in named(request.form.get("pool", "")):
            try:
                flash(do(ask, pool, asked, gate.who().name), "done")
            except Unheard as error:
                flash(f"{pool}: {error}", "refused")
        back = request.form.get("back", "")
        safe = back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable()
        return redirect(back if safe else url_for("pages.overview"), 303)

    return controls


def _asked(form: dict[str, str]) -> dict[str, Any]:
    """The form's texts as a request's values."""
    asked: dict[str, Any] = {
        key: form[key].strip() for key in ("action", "why", "target", "mode") if form.get(key, "").strip()
    }
    for key, field, times in (("weight", "weight", 1), ("for_s", "for_min", 60)):
        text = form.get(field, "").strip()
        if text:
            try:
                asked[key] = int(text) * times
            except ValueError:
                asked[key] = text
    return asked

"""Logging in and out. What is counted, and what may be tried at the same time: `slackwater.web.logins`."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from flask import Blueprint, Response, redirect, render_template, request, session, url_for
from werkzeug.wrappers import Response as BaseResponse

from slackwater.web.access import path_on_this_site
from slackwater.web.context import context
from slackwater.web.lanes import RETRY_S, BusyError

log = logging.getLogger("slackwater.web")

login = Blueprint("login", __name__)


@login.get("/login")
def show() -> Response:
    return _form("")


@login.post("/login")
def log_in() -> BaseResponse:
    gate = context().gate
    name = request.form.get("name", "")
    try:
        user = gate.logins.user(name, request.form.get("password", ""), gate.client(name))
    except BusyError as error:
        refused = _form(str(error), 429)
        refused.headers["Retry-After"] = str(RETRY_S)
        return refused
    if user is None:
        log.warning("a login was refused, from %s", gate.client_address())
        return _form("Name or password is wrong.", 401)
    session.clear()
    session.permanent = True
    session.update(name=user.name, stamp=user.stamp, since=gate.clock(), id=secrets.token_hex(16))
    log.info("%s logged in as %s, from %s", user.name, user.role, gate.client_address())
    answer = redirect(_next(request.form))
    gate.devices.remember(request, answer, user.name)
    return answer


@login.post("/logout")
def log_out() -> BaseResponse:
    """Ends the session, also for whoever has a copy of its cookie."""
    if context().gate.who().by == "session":
        context().gate.ended.add(session["id"])
    session.clear()
    return redirect(url_for("pages.overview"))


def _form(problem: str, status: int = 200) -> Response:
    page = render_template("login.html", problem=problem, next=_next(request.values))
    return Response(page, status, mimetype="text/html")


def _next(given: Any) -> str:
    """Where a login leads."""
    return path_on_this_site(given.get("next", "")) or url_for("pages.overview")

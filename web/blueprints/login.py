"""Logging in and out. Wrong logins are limited (https://flask-limiter.readthedocs.io/).

First per address and name together, so that nobody's wrong logins lock others out, even where all come from one
address. The wider limits are against guessing from many addresses, and against the CPU time that guessing takes.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

from flask import Blueprint, Response, redirect, render_template, request, session, url_for
from flask_limiter import Limiter
from werkzeug.wrappers import Response as BaseResponse

from web.access import path_on_this_site
from web.context import context

log = logging.getLogger("slackwater.web")
LOGINS = "10 per minute"
LOGINS_OF_A_NAME = "100 per 15 minutes"
LOGINS_OF_AN_ADDRESS = "120 per minute"

login = Blueprint("login", __name__)


def _address() -> str:
    return f"address:{context().gate.client_address()}"


def _name() -> str:
    return f"name:{request.form.get('name', '')[:64]}"


def _address_and_name() -> str:
    return f"{_address()} {_name()}"


def _was_wrong(response: BaseResponse) -> bool:
    return response.status_code == 401


limiter = Limiter(_address, storage_uri="memory://")


def _too_many(_: Any) -> Response:
    return _form("Too many tries. Wait a few minutes.", 429)


@login.get("/login")
def show() -> Response:
    return _form("")


@login.post("/login")
@limiter.limit(LOGINS, key_func=_address_and_name, deduct_when=_was_wrong, on_breach=_too_many)
@limiter.limit(LOGINS_OF_A_NAME, key_func=_name, deduct_when=_was_wrong, on_breach=_too_many)
@limiter.limit(LOGINS_OF_AN_ADDRESS, key_func=_address, deduct_when=_was_wrong, on_breach=_too_many)
def log_in() -> BaseResponse:
    gate = context().gate
    user = gate.users.login(request.form.get("name", ""), request.form.get("password", ""))
    if user is None:
        log.warning("a login was refused, from %s", gate.client_address())
        return _form("Name or password is wrong.", 401)
    session.clear()
    session.permanent = True
    session.update(name=user.name, stamp=user.stamp, since=gate.clock(), id=secrets.token_hex(16))
    log.info("%s logged in as %s, from %s", user.name, user.role, gate.client_address())
    return redirect(_next(request.form))


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

"""Logging in and out. Logins are limited per address and per name (https://flask-limiter.readthedocs.io/)."""

from __future__ import annotations

import logging
from typing import Any

from flask import Blueprint, Response, redirect, render_template, request, session, url_for
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from werkzeug.wrappers import Response as BaseResponse

from web.access import path_on_this_site
from web.context import context

log = logging.getLogger("slackwater.web")
LOGINS = "10 per minute"
LOGINS_OF_A_NAME = "20 per 15 minutes"

login = Blueprint("login", __name__)
limiter = Limiter(get_remote_address, storage_uri="memory://")


def _name_limited() -> str:
    return f"name:{request.form.get('name', '')[:64]}"


def _too_many(_: Any) -> Response:
    return _form("Too many tries. Wait a few minutes.", 429)


@login.get("/login")
def show() -> Response:
    return _form("")


@login.post("/login")
@limiter.limit(LOGINS, on_breach=_too_many)
@limiter.limit(LOGINS_OF_A_NAME, key_func=_name_limited, on_breach=_too_many)
def log_in() -> BaseResponse:
    gate = context().gate
    user = gate.users.login(request.form.get("name", ""), request.form.get("password", ""))
    if user is None:
        log.warning("a login was refused, from %s", request.remote_addr)
        return _form("Name or password is wrong.", 401)
    session.clear()
    session.permanent = True
    session.update(name=user.name, stamp=user.stamp, since=gate.clock())
    log.info("%s logged in as %s, from %s", user.name, user.role, request.remote_addr)
    return redirect(_next(request.form))


@login.post("/logout")
def log_out() -> BaseResponse:
    session.clear()
    return redirect(url_for("pages.overview"))


def _form(problem: str, status: int = 200) -> Response:
    page = render_template("login.html", problem=problem, next=_next(request.values))
    return Response(page, status, mimetype="text/html")


def _next(given: Any) -> str:
    """Where a login leads."""
    return path_on_this_site(given.get("next", "")) or url_for("pages.overview")

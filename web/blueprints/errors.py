"""Errors as pages for people and as JSON for programs."""

from __future__ import annotations

import contextlib

import msgspec
from flask import Blueprint, Response, current_app, render_template, request
from werkzeug.exceptions import HTTPException, SecurityError
from werkzeug.wrappers import Response as BaseResponse

from slackwater.core.journal.journal import JournalError
from slackwater.views.answers import Error
from slackwater.web.access import FOR_PROGRAMS
from slackwater.web.context import context
from slackwater.web.lanes import RETRY_S, BusyError
from slackwater.web.users import UsersError

errors = Blueprint("errors", __name__)


@errors.app_errorhandler(HTTPException)
def refused(error: HTTPException) -> BaseResponse:
    """Refusals, with their own headers such as Allow."""
    answer = error.get_response()
    # A page for a foreign host name would lead nowhere.
    with_page = not isinstance(error, SecurityError)
    return _say(answer, error.code or 500, error.name, str(error.description), with_page)


@errors.app_errorhandler(JournalError)
def unreadable(error: JournalError) -> BaseResponse:
    """The journal is missing or broken."""
    return _say(Response(status=503), 503, "The journal cannot be read", str(error))


@errors.app_errorhandler(UsersError)
def no_users(error: UsersError) -> BaseResponse:
    """The file of users is damaged."""
    current_app.logger.error("%s", error)
    return _say(Response(status=503), 503, "Nobody can log in", "The file of users cannot be used; the log says why.")


@errors.app_errorhandler(BusyError)
def busy(error: BusyError) -> BaseResponse:
    answer = Response(status=429, headers={"Retry-After": str(RETRY_S)})
    return _say(answer, 429, "Too much at once", str(error))


@errors.app_errorhandler(MemoryError)
def no_room(_: MemoryError) -> BaseResponse:
    """The process reached its limit (`slackwater.web.memory`); what it had taken for this request is free again."""
    current_app.logger.error("the page %s needs more memory than the dashboard may take", request.path)
    return _say(Response(status=503), 503, "Too much", "This takes more memory than the dashboard has; ask for less.")


@errors.app_errorhandler(Exception)
def broken(_: Exception) -> BaseResponse:
    """A bug in an endpoint."""
    current_app.logger.exception("the page %s failed", request.path)
    text = "This page failed; the log has the cause. The controller runs on."
    return _say(Response(status=500), 500, "It failed", text)


def _say(answer: BaseResponse, status: int, title: str, text: str, with_page: bool = True) -> BaseResponse:
    """Fills the answer: JSON for programs, a page for people."""
    if request.path.startswith(FOR_PROGRAMS):
        answer.set_data(msgspec.json.encode(Error(text)))
        answer.mimetype = "application/json"
    elif with_page:
        with contextlib.suppress(HTTPException, UsersError):  # then the page is for nobody
            context().gate.who()
        answer.set_data(render_template("error.html", status=status, title=title, text=text))
        answer.mimetype = "text/html"
    return answer

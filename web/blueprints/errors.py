"""Errors as pages for people and as JSON for programs."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response, current_app, render_template, request
from werkzeug.exceptions import HTTPException, SecurityError
from werkzeug.sansio.response import Response as BaseResponse

from slackwater.journal.journal import JournalError
from slackwater.views.answers import Error
from web.access import FOR_PROGRAMS
from web.context import as_json

errors = Blueprint("errors", __name__)


@errors.app_errorhandler(HTTPException)
def refused(error: HTTPException) -> BaseResponse | HTTPException:
    """Refusals, with their own headers such as Allow."""
    if isinstance(error, SecurityError):  # a foreign host name: there is no page to lead to
        return error
    answer = error.get_response()
    if request.path.startswith(FOR_PROGRAMS):
        answer.set_data(msgspec.json.encode(Error(str(error.description))))
        answer.mimetype = "application/json"
    else:
        page = render_template("error.html", code=error.code, title=error.name, text=error.description)
        answer.set_data(page)
    return answer


@errors.app_errorhandler(JournalError)
def unreadable(error: JournalError) -> Response:
    """The journal is missing or broken."""
    if request.path.startswith(FOR_PROGRAMS):
        return as_json(Error(str(error)), 503)
    return _page(503, "The journal cannot be read", str(error))


@errors.app_errorhandler(Exception)
def broken(error: Exception) -> Response:
    """A bug in an endpoint."""
    current_app.logger.exception("the page %s failed", request.path)
    return _page(500, type(error).__name__, "This page failed; the log has the cause. The controller runs on.")


def _page(status: int, title: str, text: str) -> Response:
    page = render_template("error.html", code=status, title=title, text=text)
    return Response(page, status, mimetype="text/html")

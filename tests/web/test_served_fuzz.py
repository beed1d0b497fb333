"""A served dashboard that is asked anything: whatever is in a request, it is never answered with a fault.

Requests are made from the application's own routes and the parameters that its API describes, and then of bytes.
`make test` tries some of each; `make test-full` many others.
"""

from __future__ import annotations

import json
import re
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.web import create_app
from slackwater.web.blueprints.api import described
from slackwater.web.users import Users
from tests.support.served_dashboard import Dashboard, served
from tests.support.web_settings import settings_in
from tests.support.web_story import T0, story

PASSWORD = "correct horse battery"
with tempfile.TemporaryDirectory() as made_here:
    RULES = [rule.rule for rule in create_app(settings_in(Path(made_here))).url_map.iter_rules()]
FAULT = re.compile(rb"HTTP/1\.[01] 5\d\d")
EPISODE = f"/pools/web/episodes/web1/{round((T0 - 42) * 1000)}"
API = described.description()["paths"]
PARAMETERS = sorted(
    {
        parameter["name"]
        for path in described.description()["paths"].values()
        for operation in path.values()
        for parameter in operation["parameters"]
    }
    | {"last", "until", "next", "search", "state", "sort", "group", "zone", "type", "x"}
)
FIELDS = (
    "action",
    "pool",
    "target",
    "weight",
    "for_s",
    "for_min",
    "since_ms",
    "since_unix_s",
    "mark",
    "why",
    "mode",
    "by",
)
WORDS = (
    *("web", "web1", "other", "*", "pause", "pin", "mode", "act", "observe", "unpin", "mark_episode", "deploy", "all"),
    *("24h", "90d", "7", "1e-300", "2.22e-299", "1e308", "-0", "nan", "inf", "0", "1", "1.5", "1795000000", "٣", "²"),
    *("9" * 30, "9" * 400, "9" * 5000, "//[", "/\t/[", "http://[", "//evil.example", "/é", "/\n", "%", "%00", "\0"),
    *("\ud800", "", " ", "'", '"', "<b>", "é" * 300, "x" * 3000, "..", "../..", ".", ";", "&", "=", "\r\nX: y", "🌊"),
    *("Bearer swt_x", "bearer", "Basic YTpi"),
)
TEXT = st.sampled_from(WORDS) | st.text(max_size=12)
HEADERS = (
    *("Accept", "Authorization", "Cookie", "Referer", "Origin", "Host", "X-Forwarded-For", "X-CSRFToken", "Range"),
    *("If-Modified-Since", "If-None-Match", "Content-Type", "Accept-Encoding", "X-Remote-User", "Forwarded", "Upgrade"),
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
long = settings(quick, max_examples=4000)


@dataclass(frozen=True)
class Asked:
    """A dashboard, and who may ask it."""

    dashboard: Dashboard
    token: str
    cookie: str
    csrf: str

    @property
    def base(self) -> str:
        host, port = self.dashboard.address
        return f"http://{host}:{port}"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A dashboard with a story in its journal, and an operator who has logged in."""
    folder = tmp_path_factory.mktemp("state")
    users = Users(folder)
    users.add_user("anna", "operator", PASSWORD)
    token = users.add_token("program", "operator")
    with Journal.open(journal_path(folder), clock=lambda: T0) as journal:
        journal.record(*story())
    with served(folder) as dashboard:
        page = whole(dashboard, b"GET /login HTTP/1.0\r\nHost: localhost\r\n\r\n")
        cookie, csrf = of_page(page)
        form = urlencode({"name": "anna", "password": PASSWORD, "csrf_token": csrf})
        logged_in = whole(dashboard, request("POST", "/login", {"Cookie": cookie, **FORM}, form.encode()))
        cookie, _ = of_page(logged_in)
        page = whole(dashboard, request("GET", "/confirm/pause", {"Cookie": cookie}))
        fresh, csrf = of_page(page)  # the session has the form's token from now on
        asked = Asked(dashboard, token, fresh or cookie, csrf)
        _, answer = ask(asked, "POST", "/control", "", {}, "action=pause&pool=web", "session")
        assert answer.startswith(b"HTTP/1.1 303"), "the session is an operator's"
        yield asked
        assert dashboard.process.poll() is None
        assert "Traceback" not in dashboard.log.read_text()


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def request(method: str, target: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogatepass") + body


def whole(dashboard: Dashboard, sent: bytes) -> str:
    with dashboard.connect() as connection:
        connection.sendall(sent)
        return connection.makefile("rb").read().decode()


def of_page(page: str) -> tuple[str, str]:
    """Its session's cookie and its form's token."""
    cookie = re.search(r"Set-Cookie: (slackwater=[^;]+)", page)
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)
    return cookie.group(1) if cookie else "", token.group(1) if token else ""


# --- whole requests


def escaped(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def path_of(rule: str) -> st.SearchStrategy[str]:
    """A route with its variables filled with anything."""
    parts = (TEXT.map(escaped) if part.startswith("<") else st.just(part) for part in re.split(r"(<[^>]+>)", rule))
    return st.tuples(*parts).map("".join)


def encoded(names: Sequence[str]) -> st.SearchStrategy[str]:
    """Some of these fields with anything in them, as in a query or a form."""
    pairs = st.lists(st.tuples(st.sampled_from(names), TEXT), max_size=5)
    return pairs.map(lambda fields: "&".join(f"{name}={escaped(text)}" for name, text in fields))


def header_text(text: str) -> str:
    """What a client can send in a line."""
    return re.sub(r"[\r\n]", " ", text)


PATHS = st.one_of(*map(path_of, RULES), st.just(EPISODE), TEXT.map(lambda text: f"/{escaped(text)}"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
).map(lambda value: json.dumps(value))
BODIES = encoded(("csrf_token", "name", "password", "next", "back", *FIELDS)) | JSON | TEXT


def ask(
    asked: Asked, method: str, path: str, query: str, headers: dict[str, str], body: str, by: str
) -> tuple[bytes, bytes]:
    """The request, and the first line of its answer."""
    known: dict[str, str] = {}
    if by == "token":
        known = {"Authorization": f"Bearer {asked.token}", "Content-Type": "application/json"}
    elif by == "session":
        known = {"Cookie": asked.cookie, "X-CSRFToken": asked.csrf, **FORM}
    if path.startswith("/logout"):  # it would end the session of all
        known = {}
    given = {name: header_text(text) for name, text in headers.items()}
    data = body.encode("utf-8", "surrogatepass")
    sent = request(method, f"{path}?{query}" if query else path, {**known, **given}, data)
    return sent, asked.dashboard.first_line(sent)


def no_fault(asked: Asked, method: str, path: str, *rest: Any) -> None:
    sent, answer = ask(asked, method, path, *rest)
    healthz = path.startswith("/healthz") and answer.startswith(b"HTTP/1.1 503")  # it says that no cycle comes
    assert answer.startswith(b"HTTP/1."), sent
    assert healthz or not FAULT.match(answer), (sent, answer)


ANY_REQUEST = given(
    method=st.sampled_from(("GET", "GET", "POST", "HEAD", "PUT", "OPTIONS")),
    path=PATHS,
    query=encoded(PARAMETERS),
    headers=st.dictionaries(st.sampled_from(HEADERS), TEXT, max_size=2),
    body=BODIES,
    by=st.sampled_from(("nobody", "token", "session")),
)


@ANY_REQUEST
@quick
def test_no_request_is_answered_with_a_fault(asked: Asked, method: str, path: str, **rest: Any) -> None:
    no_fault(asked, method, path, *rest.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@ANY_REQUEST
@long
def test_none_of_many_requests_is_answered_with_a_fault(asked: Asked, method: str, path: str, **rest: Any) -> None:
    no_fault(asked, method, path, *rest.values())


def ascii_start(text: str) -> str:
    """A short name for a test."""
    return f"{ascii(text)[:8]} {len(text)}"


@pytest.mark.parametrize("name", ["next", "back", "Referer"])
@pytest.mark.parametrize("text", ["//[", "/\t/[", "http://[", "/é\u2028", "/\ud800", "/\U0001f30a", "/%", "/\x7f"])
def test_wherever_a_redirect_shall_lead_it_is_no_fault(asked: Asked, name: str, text: str) -> None:
    field, headers = f"{name}={escaped(text)}", {name: header_text(text)}
    for path in ("/login", "/confirm/pause"):
        no_fault(asked, "GET", path, field, headers, "", "nobody")
    form = f"name=anna&password={escaped(PASSWORD)}&{field}&csrf_token={escaped(asked.csrf)}"
    no_fault(asked, "POST", "/login", "", headers, form, "session")
    no_fault(asked, "POST", "/control", "", headers, f"action=pause&pool=web&{field}", "session")


@pytest.mark.parametrize("number", ["9" * 30, "9" * 400, "9" * 5000, "²", "٣" * 20, "-1", "1e999"], ids=ascii_start)
def test_however_long_a_number_is_it_is_no_fault(asked: Asked, number: str) -> None:
    for field in ("weight", "for_min", "since_ms"):
        form = {
            "action": "mark_episode",
            "pool": "web",
            "target": "web1",
            "mark": "deploy",
            "weight": "1",
            "for_min": "1",
        }
        no_fault(asked, "POST", "/control", "", {}, urlencode({**form, "since_ms": "1", field: number}), "session")
    no_fault(asked, "GET", f"/pools/web/episodes/web1/{escaped(number)}", "", {}, "", "nobody")
    no_fault(asked, "GET", "/changes", f"page={escaped(number)}", {}, "", "nobody")
    no_fault(asked, "POST", "/api/v1/pools/web/control", "", {}, f'{{"action": "pin", "weight": {number}}}', "token")


# --- the API as it is described


load_all_checks()
api = schemathesis.openapi.from_dict(described.description())


def answers_as_described(asked: Asked, case: schemathesis.Case[Any]) -> None:
    bearer = {"Authorization": f"Bearer {asked.token}"}
    response = case.call(base_url=asked.base, headers=bearer)
    assert response.status_code < 500, response.text
    if response.status_code != 400:  # what a positive case may still be refused for is in tests/web/test_api.py
        case.validate_response(response, excluded_checks=[schemathesis.checks.ignored_auth])


@api.parametrize()
@settings(quick, max_examples=8)
def test_the_served_api_answers_as_described(case: schemathesis.Case[Any], asked: Asked) -> None:
    answers_as_described(asked, case)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@api.parametrize()
@settings(quick, max_examples=300)
def test_the_served_api_answers_many_as_described(case: schemathesis.Case[Any], asked: Asked) -> None:
    answers_as_described(asked, case)


# --- bytes

PIECES = (
    *(
        b"GET ",
        b"POST ",
        b"/",
        b"/api/v1/pools",
        b" HTTP/1.1",
        b" HTTP/1.0",
        b" HTTP/9.9",
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
    ),
    *(
        b"Host: localhost",
        b"Host: [",
        b"Host:",
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"Content-Length: 99999999999",
    ),
    *(b"Transfer-Encoding: chunked", b"5\r\nhello\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"Expect: 100-continue"),
    *(
        b"Connection: close",
        b"Connection: upgrade",
        b"Cookie: slackwater=x",
        b": ",
        b" x: y",
        b"\xff\xfe",
        b"%",
        b"?",
        b"#",
    ),
)


def bytes_are_no_fault(asked: Asked, parts: list[bytes]) -> None:
    """Sent, and ended; whatever comes back is read."""
    with asked.dashboard.connect() as connection:
        try:
            connection.sendall(b"".join(parts))
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").read()
        except (ConnectionResetError, BrokenPipeError):
            return
    assert not FAULT.search(answer), (parts, answer)


ANY_BYTES = given(parts=st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), min_size=1, max_size=14))


@ANY_BYTES
@quick
def test_no_bytes_are_answered_with_a_fault(asked: Asked, parts: list[bytes]) -> None:
    bytes_are_no_fault(asked, parts)


@pytest.mark.slow
@ANY_BYTES
@long
def test_none_of_many_bytes_are_answered_with_a_fault(asked: Asked, parts: list[bytes]) -> None:
    bytes_are_no_fault(asked, parts)

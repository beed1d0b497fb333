"""A dashboard's application with people who may log in, and an lbengine that writes down what it is asked."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.security import generate_password_hash

from slackwater.core.control import Request
from slackwater.web import create_app
from slackwater.web.users import Users
from tests.support.web_settings import settings_in

T0 = 1_795_000_000.0
PASSWORD = "correct horse battery"
ROLES = {"anna": "operator", "victor": "viewer"}


class Site:
    """An application with a clock, two people, and an lbengine that writes down what it is asked."""

    def __init__(self, folder: Path, web: str = "") -> None:
        self.now_unix_s = T0
        self.asked: list[tuple[str, Request]] = []
        self.answer: Exception | None = None
        self.settings = settings_in(folder, web)
        self.users = Users(folder)
        self.users.path.write_bytes(people())
        self.app: Flask = create_app(self.settings, clock=lambda: self.now_unix_s, send=self.ask)

    def ask(self, pool: str, request: Request) -> str:
        self.asked.append((pool, request))
        if self.answer is not None:
            raise self.answer
        return f"{pool}: {request.action} by {request.by}"

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def logged_in(self, name: str) -> FlaskClient:
        client = self.client()
        answer = client.post("/login", data={"name": name, "password": PASSWORD, "csrf_token": token_of(client)})
        assert answer.status_code == 302, answer.text
        return client


@cache
def people() -> bytes:
    """The file with anna, an operator, and victor, a viewer. Their passwords are quick to check."""
    password_hash = generate_password_hash(PASSWORD, method="scrypt:1024:8:1")
    users = [{"name": name, "role": role, "password_hash": password_hash} for name, role in ROLES.items()]
    return msgspec.json.encode({"users": users})


def token_of(client: FlaskClient, path: str = "/login") -> str:
    field = re.search(r'name="csrf_token" value="([^"]+)"', client.get(path).text)
    assert field is not None
    return field.group(1)


def wrong_logins(site: Site, name: str, times: int, forwarded: str = "", peer: str = "127.0.0.1") -> list[int]:
    """The answers to wrong logins, of a browser without an earlier one."""
    client = site.client()
    form = {"name": name, "password": "wrong wrong wrong", "csrf_token": token_of(client)}
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    base = {"REMOTE_ADDR": peer}
    return [client.post("/login", data=form, headers=headers, environ_base=base).status_code for _ in range(times)]

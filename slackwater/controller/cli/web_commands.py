"""`slackwater web`: logins to the dashboard, and programs' tokens."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Literal

import click

from slackwater.core.config import load
from slackwater.core.options import config_option, json_option, tell
from slackwater.web.users import NAME_PATTERN, Users

role_option = click.option(
    "--role",
    type=click.Choice(["viewer", "operator"]),
    default="viewer",
    show_default=True,
    help="viewer: may read; operator: may also pause, pin, ...",
)


def a_name(_: click.Context, __: click.Parameter, value: str) -> str:
    """A click callback: the name of a person or a program."""
    if not re.search(NAME_PATTERN, value):
        expected = "at most 64 letters, digits and . _ @ -, with a letter or a digit first"
        raise click.BadParameter(f"expected {expected}, got {value!r}")
    return value


def users_of(config_path: Path) -> Users:
    return Users(load(config_path).state_dir)


@click.group(epilog="Example: slackwater web user add anna --role operator")
def web() -> None:
    """Manage logins to the dashboard, and programs' tokens.

    Run it as root or as the user that `slackwater serve` runs as: the file `web-users.json` in `state_dir` is closed to
    others.
    """


@web.group(epilog="Example: slackwater web user list")
def user() -> None:
    """People who log in with a password."""


@user.command(name="add", epilog="Example: slackwater web user add anna --role operator")
@click.argument("name", callback=a_name)
@role_option
@config_option
@json_option
def add_user(name: str, role: Any, config_path: Path, as_json: bool) -> None:
    """Add NAME, or give NAME a new password and role. The password is prompted for, or read from a pipe.

    A new password ends the open sessions.
    """
    users = users_of(config_path)
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=as_json)
    else:
        password = sys.stdin.readline().rstrip("\n")
    users.add_user(name, role, password)
    tell({"name": name, "role": role}, f"{name} may log in as {role}", as_json)


@web.group(epilog="Example: slackwater web token add grafana")
def token() -> None:
    """Tokens of programs: `Authorization: Bearer TOKEN`."""


@token.command(name="add", epilog="Example: slackwater web token add deploys --role operator")
@click.argument("name", callback=a_name)
@role_option
@config_option
@json_option
def add_token(name: str, role: Any, config_path: Path, as_json: bool) -> None:
    """Make a token and print it. It cannot be shown again."""
    token = users_of(config_path).add_token(name, role)
    tell({"name": name, "role": role, "token": token}, token, as_json)


def _remove_and_list(group: click.Group, kind: Literal["user", "token"], example: str) -> None:
    """Adds the commands that both groups have."""

    @group.command(epilog=f"Example: slackwater web {kind} remove {example}")
    @click.argument("name")
    @config_option
    @json_option
    def remove(name: str, config_path: Path, as_json: bool) -> None:
        users_of(config_path).remove(kind, name)
        tell({"name": name}, f"the {kind} {name} is removed", as_json)

    @group.command(name="list", epilog=f"Example: slackwater web {kind} list")
    @config_option
    @json_option
    def list_all(config_path: Path, as_json: bool) -> None:
        names = [{"name": user.name, "role": user.role} for user in users_of(config_path).all()[kind == "token"]]
        if not names and not as_json:
            click.echo(f"no {kind} yet; `slackwater web {kind} add NAME` adds one", err=True)
        else:
            tell({f"{kind}s": names}, "\n".join("\t".join(row.values()) for row in names), as_json)

    remove.help = f"Remove the {kind} NAME; it is refused at once, also in open sessions."
    list_all.help = f"List the {kind}s and their roles."


_remove_and_list(user, "user", "anna")
_remove_and_list(token, "token", "grafana")

"""`slackwater web`: who may log in to the dashboard, and the tokens of programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from slackwater.config import load
from slackwater.options import config_option
from web.users import Users

role_option = click.option(
    "--role",
    type=click.Choice(["viewer", "operator"]),
    default="viewer",
    show_default=True,
    help="viewer: may look; operator: may also pause, pin, ...",
)


def users_of(config_path: Path) -> Users:
    return Users(load(config_path).state_dir)


@click.group(epilog="Example: slackwater web user add anna --role operator")
def web() -> None:
    """Who may log in to the dashboard, and the tokens of programs.

    Run it as the user that `slackwater serve` runs as: the file `web-users.json` in `state_dir` is closed to others.
    """


@web.group(epilog="Example: slackwater web user list")
def user() -> None:
    """People who log in with a password."""


@user.command(name="add", epilog="Example: slackwater web user add anna --role operator")
@click.argument("name")
@role_option
@config_option
def add_user(name: str, role: Any, config_path: Path) -> None:
    """Add NAME, or give NAME a new password and role; asks for the password (a pipe gives it in one line).

    A new password ends the sessions of before.
    """
    users = users_of(config_path)
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    users.add_user(name, role, password)
    click.echo(f"{name} may log in as {role}")


@user.command(name="remove", epilog="Example: slackwater web user remove anna")
@click.argument("name")
@config_option
def remove_user(name: str, config_path: Path) -> None:
    """Remove NAME; their sessions end at once."""
    users_of(config_path).remove("user", name)
    click.echo(f"{name} may no longer log in")


@user.command(name="list", epilog="Example: slackwater web user list")
@config_option
def list_users(config_path: Path) -> None:
    """List the people and their roles."""
    for one in users_of(config_path).all()[0]:
        click.echo(f"{one.name}\t{one.role}")


@web.group(epilog="Example: slackwater web token add grafana")
def token() -> None:
    """Tokens of programs: `Authorization: Bearer TOKEN`."""


@token.command(name="add", epilog="Example: slackwater web token add deploys --role operator")
@click.argument("name")
@role_option
@config_option
def add_token(name: str, role: Any, config_path: Path) -> None:
    """Make a token and print it, this once."""
    click.echo(users_of(config_path).add_token(name, role))


@token.command(name="remove", epilog="Example: slackwater web token remove grafana")
@click.argument("name")
@config_option
def remove_token(name: str, config_path: Path) -> None:
    """Remove a token; it is refused at once."""
    users_of(config_path).remove("token", name)
    click.echo(f"the token {name} is removed")


@token.command(name="list", epilog="Example: slackwater web token list")
@config_option
def list_tokens(config_path: Path) -> None:
    """List the tokens' names and roles."""
    for one in users_of(config_path).all()[1]:
        click.echo(f"{one.name}\t{one.role}")

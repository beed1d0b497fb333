"""How we log in to the bus, and what may be said there: from the settings, for nats-py."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Any

from slackwater.core.bus.client import ConnectionRules
from slackwater.core.config import BusSettings, OwnBusSettings
from slackwater.core.files import secret_of
from slackwater.core.messages import is_name


class BusError(Exception):
    """The bus cannot be reached, or there was no answer; the text names the address and what to check."""


def without_password(url: str) -> str:
    """The URL without its password, for logs."""
    return re.sub(r"//[^/@]*@", "//***@", url)


def rules_of(settings: BusSettings) -> ConnectionRules:
    """What may be said on which connection."""
    follows = bool(settings.tls_ca) or not (settings.has_password or settings.needs_tls)
    return ConnectionRules(settings.needs_tls, settings.has_password, follows, _users_of(settings))


def _users_of(settings: BusSettings) -> frozenset[int]:
    """Who may run the server: of the controller's own one the user whose passwords these are, and root. Empty: anybody,
    as a server of the site's may be of any user."""
    if not isinstance(settings, OwnBusSettings):
        return frozenset()
    try:
        return frozenset({0, Path(settings.password_file).stat().st_uid})
    except OSError:
        return frozenset({0, os.geteuid()})


def inbox_of(user: str) -> str:
    """Where answers to this user's questions go: nobody but the controller may listen to those of others."""
    return f"_INBOX.{user}" if is_name(user) else "_INBOX"


def login_of(settings: BusSettings) -> dict[str, Any]:
    """User, password and TLS for nats-py. Raises BusError for a file that is not there or open to others."""
    login: dict[str, Any] = {}
    if settings.user:
        path = Path(settings.password_file)
        try:
            secret, mode = secret_of(path)
            if mode & 0o007:
                raise BusError(
                    f"bus.password_file: {path} can be used by everybody on this machine (mode {mode:04o}); chmod 0640"
                )
            login |= {"user": settings.user, "password": secret.strip()}
        except PermissionError:
            raise BusError(f"bus.password_file: {path}: may not be read; run this as root or as its owner") from None
        except FileNotFoundError:
            raise BusError(f"bus.password_file: {path}: is not there; has `slackwater serve` been started?") from None
        except OSError as error:
            raise BusError(f"bus.password_file: {path}: {error.strerror}") from None
    if settings.tls_ca:
        try:
            login["tls"] = ssl.create_default_context(cafile=settings.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise BusError(f"bus.tls_ca: {settings.tls_ca}: {error.strerror or error}") from None
    return login

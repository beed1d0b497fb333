"""Browsers from which somebody logged in: a signed cookie says under which name. It lets nobody in.

With it, others' wrong tries do not count (`slackwater.web.logins`).
"""

from __future__ import annotations

import hashlib
import secrets

from flask import Request
from itsdangerous import BadData, URLSafeTimedSerializer
from werkzeug.wrappers import Response

KEPT_S = 180 * 86400
"""How long a cookie is kept; it begins anew with each login."""

_SIGNER = {"digest_method": hashlib.sha256, "key_derivation": "hmac"}


class KnownDevices:
    """The cookies of one application; `key` signs them."""

    def __init__(self, key: bytes, secure: bool) -> None:
        self._signer = URLSafeTimedSerializer(key, salt="slackwater-known-device", signer_kwargs=_SIGNER)
        self._secure = secure
        self.cookie = "__Host-slackwater-known" if secure else "slackwater-known"

    def of(self, request: Request, name: str) -> str:
        """The device that sent the request, if somebody logged in there under this name; else empty."""
        try:
            signed = self._signer.loads(request.cookies.get(self.cookie, ""), max_age=KEPT_S)
        except BadData:
            return ""
        known = isinstance(signed, list) and len(signed) == 2 and signed[0] == name and bool(name)
        return f"device {signed[1]}" if known else ""

    def remember(self, request: Request, answer: Response, name: str) -> None:
        """Has the browser keep that somebody logged in under this name."""
        device = self.of(request, name).removeprefix("device ") or secrets.token_hex(16)
        answer.set_cookie(
            self.cookie,
            self._signer.dumps([name, device]),
            max_age=KEPT_S,
            secure=self._secure,
            httponly=True,
            samesite="Lax",
        )

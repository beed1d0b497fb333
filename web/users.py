"""Who may log in: names with a role and a hashed password, and tokens for programs, in `state_dir/web-users.json`.

Passwords are kept as scrypt hashes (RFC 7914), tokens as SHA-256: they are 256 random bits. The file is
closed to others.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from werkzeug.security import check_password_hash, generate_password_hash

from slackwater.core.files import PRIVATE, bytes_of, make_state_dir, open_file, replace_durably

Role = Literal["viewer", "operator"]
LEAST_PASSWORD = 10
TOKEN_PREFIX = "swt_"
_DECOY = f"scrypt:32768:8:1${'x' * 16}${'0' * 128}"
"""No password's hash. It is checked for unknown names, so that known and unknown ones take the same time."""


class UsersError(Exception):
    """The file of users cannot be used, or a change to it is refused; the text has the reason."""


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$(?!\n)"
PersonName = Annotated[str, Meta(pattern=NAME_PATTERN)]


class User(msgspec.Struct, frozen=True):
    """A person; `stamp` changes with the password, which ends the sessions from before."""

    name: PersonName
    role: Role
    password_hash: str

    @property
    def stamp(self) -> str:
        return hashlib.sha256(self.password_hash.encode()).hexdigest()[:16]


class Token(msgspec.Struct, frozen=True):
    """A program's token."""

    name: PersonName
    role: Role
    sha256: str


class _File(msgspec.Struct):
    users: list[User] = []
    tokens: list[Token] = []


class Users:
    """The file; read again when it has changed."""

    def __init__(self, state_dir: str | Path) -> None:
        self.path = Path(state_dir) / "web-users.json"
        self._read: tuple[tuple[int, int], _File] | None = None

    # --- reading

    def get(self, name: str) -> User | None:
        return next((user for user in self._load().users if user.name == name), None)

    def all(self) -> tuple[list[User], list[Token]]:
        file = self._load()
        return file.users, file.tokens

    def login(self, name: str, password: str) -> User | None:
        """The user, if the password is theirs."""
        user = self.get(name)
        right = check_password_hash(user.password_hash if user is not None else _DECOY, password)
        return user if right else None

    def token(self, text: str) -> Token | None:
        """The token that a program showed, if it is one."""
        digest = _digest(text)
        return next((token for token in self._load().tokens if secrets.compare_digest(token.sha256, digest)), None)

    # --- changing

    def add_user(self, name: str, role: Role, password: str) -> None:
        """Adds a person, or gives them a new role and password. Raises UsersError."""
        if len(password) < LEAST_PASSWORD:
            raise UsersError(f"the password has {len(password)} characters; expected at least {LEAST_PASSWORD}")
        with self._changing() as file:
            file.users = [user for user in file.users if user.name != name]
            file.users.append(User(name, role, generate_password_hash(password, method="scrypt")))

    def add_token(self, name: str, role: Role) -> str:
        """Makes a token and returns it: it can never be shown again. Raises UsersError."""
        text = TOKEN_PREFIX + secrets.token_urlsafe(32)
        with self._changing() as file:
            if any(token.name == name for token in file.tokens):
                raise UsersError(f"there is a token `{name}` already; remove it first")
            file.tokens.append(Token(name, role, _digest(text)))
        return text

    def remove(self, kind: Literal["user", "token"], name: str) -> None:
        """Removes a person or a token. Raises UsersError when there is none of that name."""
        with self._changing() as file:
            old: list[User] | list[Token] = file.users if kind == "user" else file.tokens
            left = [entry for entry in old if entry.name != name]
            if len(left) == len(old):
                raise UsersError(f"there is no {kind} `{name}`")
            setattr(file, f"{kind}s", left)

    def _load(self) -> _File:
        try:
            status = self.path.stat()
            version = status.st_mtime_ns, status.st_ino
            if self._read is None or self._read[0] != version:
                self._read = version, msgspec.json.decode(bytes_of(self.path), type=_File)
        except FileNotFoundError:
            return _File()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsersError(f"{self.path}: cannot be used: {error}") from None
        return self._read[1]

    @contextmanager
    def _changing(self) -> Iterator[_File]:
        try:
            make_state_dir(self.path.parent)
            with open_closed(self.path.with_suffix(".lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                file = msgspec.json.decode(msgspec.json.encode(self._load()), type=_File)
                yield file
                data = msgspec.json.format(msgspec.json.encode(msgspec.convert(msgspec.to_builtins(file), _File)))
                replace_durably(self.path, data + b"\n", PRIVATE)
        except msgspec.ValidationError as error:
            raise UsersError(f"not kept: {error}") from None
        except OSError as error:
            raise UsersError(f"{self.path}: cannot be written: {error.strerror}") from None


@contextmanager
def open_closed(path: Path) -> Iterator[int]:
    """A descriptor of a file that only its owner may read, open for writing; the file is made if it is not there."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        yield fd
    finally:
        os.close(fd)


def session_key(state_dir: str | Path) -> bytes:
    """The key that session cookies are signed with: made at the first start, then kept. Raises UsersError."""
    path = Path(state_dir) / "web-session-key"
    try:
        make_state_dir(path.parent)
        with open_closed(path) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            key = os.pread(fd, 64, 0)
            if len(key) != 32:
                key = secrets.token_bytes(32)
                os.ftruncate(fd, 0)
                os.pwrite(fd, key, 0)
            return key
    except OSError as error:
        raise UsersError(f"{path}: cannot be used: {error.strerror}") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

"""What is declared of each setting: its name, type, default and help text."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import FieldInfo

from slackwater.core.config.balancers import BALANCERS, DEFAULT, default_of, describe_choice, own_settings
from slackwater.core.config.kinds import Settings
from slackwater.core.config.settings import ControllerSettings, PoolSettings


def hints(struct: type[Settings]) -> dict[str, Any]:
    """The annotations of a section's settings."""
    return typing.get_type_hints(struct, include_extras=True)


def struct_of(kind: Any) -> type[Settings] | None:
    """The Settings struct that an annotation means, alone or as the items of a list."""
    if typing.get_origin(kind) in (Annotated, list):
        return struct_of(typing.get_args(kind)[0])
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def describe() -> list[tuple[str, str, str]]:
    """Every setting as (dotted name, default as TOML, help): the source of docs/reference/settings.md."""
    return list(_rows(ControllerSettings, msgspec.structs.fields(ControllerSettings), ""))


def _rows(struct: type[Settings], fields: Iterable[FieldInfo], prefix: str) -> Iterator[tuple[str, str, str]]:
    kinds = hints(struct)
    for field in fields:
        inner = struct_of(kinds[field.name])
        name = f"{prefix}{field.name}"
        if inner is PoolSettings:
            yield from _pool_rows(f"{name}.")
        elif inner is not None:
            yield from _rows(inner, msgspec.structs.fields(inner), f"{name}.")
        else:
            default = "(required)" if field.required else _toml(default_of(field))
            yield name, default, _help(kinds[field.name])


def _pool_rows(prefix: str) -> Iterator[tuple[str, str, str]]:
    """A pool's settings: its name, the balancer, what each balancer adds, and the rest."""
    pool_name, *rest = msgspec.structs.fields(PoolSettings)
    yield from _rows(PoolSettings, [pool_name], prefix)
    yield f"{prefix}balancer", _toml(DEFAULT), describe_choice()
    described: set[str] = set()
    for kind in BALANCERS.values():
        fields = [field for key, field in own_settings(kind).items() if key not in described]
        described |= {field.name for field in fields}
        yield from _rows(kind, fields, prefix)
    yield from _rows(PoolSettings, rest, prefix)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _help(kind: Any) -> str:
    """The description, and the allowed words of a choice."""
    texts = [meta.description for meta in getattr(kind, "__metadata__", ()) if getattr(meta, "description", None)]
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if typing.get_origin(inner) is Literal:
        texts.append("one of " + ", ".join(f'"{word}"' for word in typing.get_args(inner)))
    return "; ".join(texts)

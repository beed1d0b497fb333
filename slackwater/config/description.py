"""What is declared of each setting: its name, type, default and help text."""

from __future__ import annotations

import typing
from typing import Annotated, Any, Literal

import msgspec

from slackwater.config.settings import ControllerSettings, Settings


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
    rows: list[tuple[str, str, str]] = []

    def walk(struct: type[Settings], prefix: str) -> None:
        kinds = hints(struct)
        for field in msgspec.structs.fields(struct):
            inner = struct_of(kinds[field.name])
            name = f"{prefix}{field.name}"
            if inner is not None:
                walk(inner, f"{name}.")
                continue
            made = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
            default = "(required)" if field.required else _toml(made)
            rows.append((name, default, _help(kinds[field.name])))

    walk(ControllerSettings, "")
    return rows


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

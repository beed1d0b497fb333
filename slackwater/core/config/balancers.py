"""The balancers that a pool can name in `balancer`, each with the settings that only its pools have.

The balancers are declared above this package, in `lbengine/backends/table.py`, which every program imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple, Union

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from slackwater.core.config.kinds import PATTERNS_IN_WORDS
from slackwater.core.config.settings import ControllerSettings, PoolSettings
from slackwater.core.messages import ServerCondition

DEFAULT = "haproxy"
"""The balancer of a pool that names none."""
BALANCERS: dict[str, type[PoolSettings]] = {}
"""The word of each balancer, and the settings of its pools."""
PoolTable = dict[str, Any]


class ShownServer(NamedTuple):
    """A server as its balancer shows it now."""

    condition: ServerCondition
    weight: int
    in_flight: int


Look = Callable[[PoolSettings, float], dict[str, ShownServer] | str]
"""Asks a pool's balancer, within a time in seconds: its servers by name, or in words why it does not answer."""
_LOOKS: list[Look] = []


def declare(kinds: Iterable[type[PoolSettings]], look: Look | None = None) -> None:
    """Makes balancers known, and how they are asked. Each kind has the tag field `balancer`, its word as the tag."""
    BALANCERS.update({kind.word(): kind for kind in kinds})
    _LOOKS[:] = [look] if look is not None else _LOOKS


def look_at(pool: PoolSettings, timeout_s: float) -> dict[str, ShownServer] | str:
    """What the pool's balancer shows now, without a controller; see `Look`."""
    return _LOOKS[0](pool, timeout_s) if _LOOKS else "no balancer is declared"


def controller_settings() -> type[ControllerSettings]:
    """ControllerSettings whose pools are of the declared balancers."""
    return _with_pools(tuple(BALANCERS.values()))


@cache
def _with_pools(kinds: tuple[type[PoolSettings], ...]) -> type[ControllerSettings]:
    assert kinds, "no balancer is declared: slackwater.lbengine.backends.table was not imported"
    pools = Annotated[list[Union[kinds]], Meta(min_length=1)]  # type: ignore[valid-type]  # noqa: UP007
    made = msgspec.defstruct(
        "ControllerSettings",
        [("pool", pools)],
        bases=(ControllerSettings,),
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )
    assert issubclass(made, ControllerSettings)
    return made


def own_settings(kind: type[PoolSettings]) -> dict[str, FieldInfo]:
    """The settings that a balancer adds to those of every pool."""
    common = PoolSettings.__struct_fields__
    return {field.name: field for field in msgspec.structs.fields(kind) if field.name not in common}


def owners(key: str) -> list[str]:
    """The words of the balancers that have a setting of this name."""
    return [word for word, kind in BALANCERS.items() if key in own_settings(kind)]


def kind_of(table: PoolTable) -> type[PoolSettings]:
    """The settings of a table `[[pool]]`; those of every pool where its balancer is not known."""
    word = table.get("balancer", DEFAULT)
    return BALANCERS.get(word, PoolSettings) if isinstance(word, str) else PoolSettings


def use_defaults(table: PoolTable) -> None:
    """Names the default balancer where a table `[[pool]]` has none, and drops other balancers' settings from it if
    they are at their defaults: they say nothing."""
    table.setdefault("balancer", DEFAULT)
    kind = kind_of(table)
    for key in [key for key in table if kind is not PoolSettings and key not in kind.__struct_fields__]:
        if table[key] in [default_of(own_settings(BALANCERS[word])[key]) for word in owners(key)]:
            del table[key]


def default_of(field: FieldInfo) -> Any:
    """A setting's default; NODEFAULT where it is required."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def place_in_words(balancer: str, driven: Mapping[str, str]) -> str:
    """What is driven (`PoolSettings.driven`) by the balancer of this word; empty: the default one."""
    return BALANCERS.get(balancer or DEFAULT, PoolSettings).describe_place(driven)


def patterns_in_words() -> dict[str, str]:
    """The patterns of all settings in words."""
    own = {pattern: words for kind in BALANCERS.values() for pattern, words in kind.patterns.items()}
    return PATTERNS_IN_WORDS | own


def describe_choice() -> str:
    """The help of the setting `balancer`."""
    *most, last = [f"{word} ({kind.needs})" for word, kind in BALANCERS.items()]
    described = f"{', '.join(most)} or {last}" if most else last
    return f"what balances: {described}; one of {quoted(BALANCERS, ', ')}"


def quoted(words: Iterable[str] | Sequence[str], between: str) -> str:
    """Words as in a TOML file, for a message."""
    return between.join(f'"{word}"' for word in words)

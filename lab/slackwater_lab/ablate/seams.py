"""How a mechanism is switched off from outside: a name of the decision code, and what stands in its place meanwhile.

So the decision code has no switches. A name that is not there any more, or takes other arguments, is an error
(`Seam.check`), which a test looks for.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


class SeamError(ValueError):
    """The decision code is not as a seam expects; the text says where and what was expected."""


@dataclass(frozen=True)
class Seam:
    """`place`: module and name, as `slackwater.lbengine.decision.calm:Calm.speed`; `instead`: what stands there
    meanwhile."""

    place: str
    instead: Any

    def check(self) -> None:
        """Raises SeamError where the name is gone, or a function takes other arguments than what stands in for it."""
        original, substitute = inspect.getattr_static(*attribute_at(self.place)), self.instead
        if isinstance(original, property) and isinstance(substitute, property):
            return
        if callable(original) != callable(substitute):
            raise SeamError(f"{self.place}: expected {'a function' if callable(substitute) else 'a value'}")
        if callable(original) and not isinstance(substitute, Argument):
            expected, takes = (list(inspect.signature(function).parameters) for function in (original, substitute))
            if expected != takes:
                raise SeamError(f"{self.place} takes {', '.join(expected)}: expected {', '.join(takes)}")


class Argument:
    """Stands in for a function that makes something better of one of its arguments, and gives that as it came."""

    def __init__(self, place: str, name: str) -> None:
        self._signature = inspect.signature(inspect.getattr_static(*attribute_at(place)))
        self._name = name
        if name not in self._signature.parameters:
            raise SeamError(f"{place} takes {', '.join(self._signature.parameters)}: expected {name} among them")

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return self._signature.bind(*positional, **named).arguments[self._name]


def as_it_came(place: str, argument: str) -> Seam:
    """The seam of a function that gives this argument back instead. Raises SeamError."""
    return Seam(place, Argument(place, argument))


def attribute_at(place: str) -> tuple[object, str]:
    """The object that has the name, and the name's last part. Raises SeamError where it has none."""
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    try:
        owner: object = importlib.import_module(module)
        for attribute in outer:
            owner = getattr(owner, attribute)
        inspect.getattr_static(owner, name)
    except (ImportError, AttributeError) as error:
        raise SeamError(f"{place}: there is no such name in the decision code: {error}") from None
    return owner, name


@contextmanager
def off(seams: Sequence[Seam]) -> Iterator[None]:
    """While in it, what stands in for these names is in their place."""
    before = [
        (owner, name, inspect.getattr_static(owner, name))
        for owner, name in (attribute_at(seam.place) for seam in seams)
    ]
    for (owner, name, _), seam in zip(before, seams, strict=True):
        setattr(owner, name, seam.instead)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def refuse_unknown(names: Sequence[str], known: Collection[str]) -> None:
    """Raises UsageError for the name of a mechanism that there is not."""
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"--off {unknown[0]}: expected one of {', '.join(known)}")


def lines_of(code: Sequence[str]) -> int:
    """Lines of these modules (`slackwater.lbengine.decision.alike`) and functions
    (`slackwater.lbengine.decision.position:tried`)."""
    return sum(map(_lines, code))


def _lines(place: str) -> int:
    if ":" not in place:
        source = importlib.import_module(place).__file__
        assert source is not None
        return len(Path(source).read_text().splitlines())
    member: Any = inspect.getattr_static(*attribute_at(place))
    function: Any = member.fget if isinstance(member, property) else member
    return len(inspect.getsourcelines(function)[0])

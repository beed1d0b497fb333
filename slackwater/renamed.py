"""Old names of settings, API request fields and command-line options, accepted with a warning for one release.

An answer of the API carries a renamed field under both names: declare the old one in its struct with `old_field`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from msgspec import Meta

SETTINGS = {"pool.way": "pool.weight_delivery"}
"""Controller settings, old dotted name -> new dotted name, both in the same table of the file."""
REQUEST_FIELDS = {"q": "text"}
"""Query parameters and body fields of API requests."""
OPTIONS = {"bus config": {"--folder": "--out"}}
"""Command -> its options. Declare the option with `cls=RenamedOption`."""

REMOVED: dict[str, str] = {
    "messages: ChangeCause enough_reduced": "`no_gain`",
    "messages: DecisionCause enough_reduced": "`no_gain`",
    "settings: controller lbengine.ramp_s": "nothing: a server that is proven calm gets its baseline weight at once",
    "settings: controller lbengine.max_falls_per_min": "nothing: a weight rises on evidence alone and needs no brake",
}
"""What was stable and is gone -> what to do instead. Keys are as tools/stable.py prints them, such as
`metrics: slackwater_info{version}`; docs/operations/upgrading.md names each in the notes of its release."""


class BothGiven(ValueError):
    """Old and new name were given together; the text names both, `old` is the old one."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"`{old}` is the old name of `{new}`, and both are given; remove `{old}`")
        self.old = old


def warning(old: str, new: str) -> str:
    """The text for users of the old name."""
    return f"`{old}` is now called `{new}`; the old name will be refused from the next release on"


def with_new_names(given: Mapping[str, Any], names: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The given values under their new names, in the same order, and the old names found. Raises BothGiven."""
    found = [old for old in names if old in given]
    for old in found:
        if names[old] in given:
            raise BothGiven(old, names[old])
    return {names.get(key, key): value for key, value in given.items()}, found


def old_field(new: str) -> Meta:
    """Annotation of an answer's field that repeats the field `new` under its old name."""
    return Meta(description=f"old name of `{new}`, until the next release", extra_json_schema={"deprecated": True})


class RenamedOption(click.Option):
    """An option that also goes by its old name in `OPTIONS`."""

    def _old_name(self, ctx: click.Context) -> str | None:
        names = OPTIONS.get(ctx.command_path.partition(" ")[2], {})
        return next((old for old, new in names.items() if new in self.opts), None)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        if old := self._old_name(ctx):
            action = "store_const" if self.is_flag else "append" if self.multiple else "store"
            const = self.flag_value if self.is_flag else None
            parser.add_option(self, [old], dest=old, action=action, nargs=self.nargs, const=const)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        old = self._old_name(ctx)
        if old in opts:
            assert old is not None
            if self.name in opts:
                raise click.UsageError(str(BothGiven(old, self.opts[-1])), ctx)
            click.echo(f"warning: {warning(old, self.opts[-1])}", err=True)
            opts = {**opts, str(self.name): opts[old]}
        return super().consume_value(ctx, opts)

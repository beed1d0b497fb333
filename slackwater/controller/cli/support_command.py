"""`slackwater support-bundle`: one archive for a bug report."""

from __future__ import annotations

import time
from pathlib import Path

import click

from slackwater.core.options import Number, config_option


@click.command(name="support-bundle", epilog="Example: slackwater support-bundle --out /tmp/bundle.tar.gz")
@config_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The archive.  [default: slackwater-support-TIME.tar.gz in this folder]",
)
@click.option(
    "--max-mb",
    type=Number(0.1, 1000.0),
    default=10.0,
    show_default=True,
    help="Most megabytes of the archive; old log lines go first.",
)
@click.option("--since", default="24 hours ago", show_default=True, metavar="TIME", help="How far back logs go.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def support_bundle(config_path: Path, out: Path | None, max_mb: float, since: str, as_json: bool) -> None:
    """Write one archive for a bug report, with secrets removed.

    Versions, settings, checks, units, logs, metrics, and recent rows of the journal. What cannot be read is left out,
    and listed with its reason: run it as root to have everything. Nothing is sent anywhere, and nothing is changed.
    """
    import msgspec

    from slackwater.controller.cli.main import COMMANDS
    from slackwater.controller.support.archive import Bundle, write_private
    from slackwater.controller.support.contents import gather, site_of
    from slackwater.controller.support.scrub import Scrubber

    name = time.strftime("slackwater-support-%Y%m%d-%H%M%S")
    path = out or Path(f"{name}.tar.gz")
    bundle = Bundle(Scrubber())
    gather(site_of(config_path, since, has_check="check" in COMMANDS), bundle)
    data, contents = bundle.pack(name, int(max_mb * 1e6))
    write_private(path, data)
    if as_json:
        written = {"path": str(path), "bytes": len(data), **msgspec.to_builtins(contents)}
        click.echo(msgspec.json.encode(written).decode())
        return
    click.echo(f"{path}: {len(data) / 1e6:.2f} MB, readable for you alone; secrets removed: {contents.secrets_removed}")
    click.echo("in it:")
    for file in contents.files:
        click.echo(f"  {file.name}: {file.bytes} bytes{' (its newest lines)' if file.cut else ''}")
    if contents.left_out:
        click.echo("left out:")
    for missing, reason in contents.left_out.items():
        click.echo(f"  {missing}: {reason}")
    click.echo("Names of servers and people, and addresses, are in it: read it before you send it.")

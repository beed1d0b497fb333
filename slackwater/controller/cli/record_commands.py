"""`slackwater record` and `slackwater mark`: labelled recordings of a live cluster."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from slackwater.core import stopping
from slackwater.core.config import load
from slackwater.core.messages import Sample
from slackwater.core.options import Number, config_option, json_option, pool_option, tell
from slackwater.detector.recordings import live, marks


@click.command(epilog="Example: slackwater record --out monday.parquet --seconds 3600 --about 'shop, after the sale'")
@config_option
@pool_option("The pool to record; needed when there are several.")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--seconds", type=Number(min=0, min_open=True), help="How long; default: until Ctrl-C.")
@click.option("--about", default="", metavar="TEXT", help="How it was made, for the file's description.")
@json_option
def record(
    config_path: Path, pool_name: str | None, out: Path, seconds: float | None, about: str, as_json: bool
) -> None:
    """Record what the monitors of a live pool say, labelled by `slackwater mark`, for `slackwater train`.

    Nothing is changed in the cluster. Marks that are still open at the end last to the end of the recording.
    """
    settings = load(config_path)
    pool, folder = settings.the_pool(pool_name).name, Path(settings.state_dir)
    live.check(out, folder)

    async def main() -> list[Sample]:
        stop = stopping.stop_event()
        begun = f"recording pool {pool}; Ctrl-C ends it and writes {out}"
        return await live.collect(
            settings.controller_bus, pool, seconds, stop, lambda text: click.echo(text, err=True), begun
        )

    heard = stopping.run(main())
    left_out: list[str] = []
    made = live.save(out, heard, pool, folder, about or f"pool {pool}, live", left_out)
    for fault in left_out:
        click.echo(f"warning: {fault}; the recording lacks its label", err=True)
    summary = {"file": str(out), "samples": len(made.samples), "nodes": made.nodes, "labels": len(made.labels)}
    sentence = f"{out}: {len(made.samples)} Samples of {len(made.nodes)} nodes, {len(made.labels)} labels"
    tell(summary, sentence, as_json)


@click.command(epilog="Example: slackwater mark web3 backup --begin;  slackwater mark web3 backup --end")
@config_option
@pool_option("The pool of the node; needed when there are several.")
@click.argument("node")
@click.argument("kind")
@click.option("--intensity", type=Number(0), default=1.0, show_default=True, help="How strongly, by your own measure.")
@click.option("--begin", "how", flag_value="begin", help="It begins now.")
@click.option("--end", "how", flag_value="end", help="It ends now.")
@click.option("--for", "for_s", type=Number(min=0, min_open=True), help="It ended now and took so many seconds.")
@json_option
def mark(
    config_path: Path,
    pool_name: str | None,
    node: str,
    kind: str,
    intensity: float,
    how: str | None,
    for_s: float | None,
    as_json: bool,
) -> None:
    """Write down what is being done to a NODE (`*`: all nodes): a label for recordings of this time.

    To say what an episode was, use `slackwater mark-episode`.

    KIND is the name of a noise (`dcopy`, `backup`, ...), which a detector should call `interference`; or one of
    `calm`, `load`, `deploy`, `reload`, `start`, `clock_step`, `flash_crowd`, `own_backup` (of the node itself; no
    neighbour, all calm), `overload`, `all_slow`, `slow_database`.
    """
    if (how is None) == (for_s is None):
        raise click.UsageError("give one of --begin, --end and --for")
    settings = load(config_path)
    pool, folder, now_unix_s = settings.the_pool(pool_name).name, Path(settings.state_dir), time.time()
    noted = marks.Mark(pool, node, kind, intensity, now_unix_s)
    if how == "end":
        noted = marks.end(folder, pool, node, kind, now_unix_s)
        sentence = f"{kind} on {node} ended after {now_unix_s - noted.start_unix_s:.1f} s"
    elif for_s is not None:
        noted = marks.Mark(pool, node, kind, intensity, now_unix_s - for_s, now_unix_s)
        marks.append(folder, noted)
        sentence = f"{kind} on {node} for the last {for_s:g} s"
    else:
        marks.begin(folder, noted)
        sentence = f"{kind} on {node} begins"
    tell(asdict(noted), sentence, as_json)

"""The command `make chaos`: `python -m tests.chaos.commands`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.paths import LAB_DIR, LabError
from slackwater_lab.options import json_option, progress, write_json
from tests.chaos import run as chaos_run
from tests.chaos.schedule import Injection
from tests.chaos.story import Broken, story


@click.command(epilog="Example: python -m tests.chaos.commands --minutes 20 --seed 7 --json chaos.json")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=20.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same faults at the same times.")
@click.option("--hosts", type=click.IntRange(2, 20), default=3, show_default=True)
@json_option
def chaos(minutes: float, seed: int, hosts: int, json_file: str | None) -> None:
    """Inject random faults into a cluster under load, and check all the time what must hold whatever happens.

    Parts are killed, hung and restarted; disks fill; clocks step; the bus is cut, slow and in disorder; HAProxy
    reloads, hangs and changes its version; nodes reboot, are renamed, and lie; the controller cannot start, and a copy
    of it takes over. Ends with status 1, and a short story, when an invariant broke.
    """
    try:
        with Lab(LabSettings(hosts, retunable=True), progress) as cluster:
            result = chaos_run.run(cluster, minutes * 60.0, seed, progress)
            logs = kept_logs(LAB_DIR) if result["broken"] else None
    except LabError as error:
        raise click.ClickException(str(error)) from error
    if write_json(result, json_file):
        done = [Injection(**row) for row in result["faults"]]
        broken = [Broken(**row) for row in result["broken"]]
        command = f"python -m tests.chaos.commands --minutes {minutes:g} --seed {seed} --hosts {hosts}"
        click.echo(story(seed, done, broken, command))
        if logs:
            click.echo(f"logs of all parts: {logs}")
        click.echo(f"{result['requests']} requests, not injected: {'; '.join(result['not_injected']) or 'none'}")
    if result["broken"]:
        sys.exit(1)


def kept_logs(folder: Path) -> Path:
    """Copies all logs below a folder to another that stays; returns that."""
    kept = Path(tempfile.mkdtemp(prefix="slackwater-chaos-"))
    for log in folder.rglob("*.log"):
        shutil.copy(log, kept / "-".join(log.relative_to(folder).parts))
    return kept


if __name__ == "__main__":
    chaos()

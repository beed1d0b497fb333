"""`slackwater calibrate`: a model for the user's own cluster, from noise on its own nodes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from slackwater.controller.cli.detector_commands import describe, progress, write_report
from slackwater.core import stopping
from slackwater.core.config import ControllerSettings, load
from slackwater.core.files import bytes_of, write_whole
from slackwater.core.options import Number, config_option, pool_option
from slackwater.detector.recordings.recording import read
from slackwater.detector.train import calibrate as calibrating
from slackwater.detector.train.calibrate import CalibrationError, NoiseSchedule, StopLimits
from slackwater.detector.train.training import train_model

EXAMPLE = "ssh {node} stress-ng --cpu 2 --cpu-load {percent} --timeout {seconds}s"
MODEL = "model.skops"


@click.command(epilog=f"Example: slackwater calibrate --node web3 --out calibration --noise-command '{EXAMPLE}'")
@config_option
@pool_option("The pool; needed when there are several.")
@click.option("--node", "nodes", multiple=True, required=True, help="A drained or lightly loaded node; again for more.")
@click.option(
    "--noise-command",
    required=True,
    metavar="COMMAND",
    help="Makes the noise on a node. {node}, {intensity}, {percent} and {seconds} are filled in; no shell reads it.",
)
@click.option("--stop-command", default="", metavar="COMMAND", help="Run after each noise, e.g. to end it remotely.")
@click.option("--kind", default="calibration", show_default=True, help="Name of the noise in the labels.")
@click.option("--intensity", "intensities", multiple=True, type=Number(0, 1, min_open=True), default=(0.25, 0.5, 1.0))
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Recordings; 2 or more are scored."
)
@click.option("--noise-s", type=Number(1, 600), default=20.0, show_default=True, help="Length of a noise.")
@click.option("--calm-s", type=Number(1, 600), default=20.0, show_default=True, help="Calm before and after.")
@click.option(
    "--max-rt-p95-ms", type=Number(0), default=1000.0, show_default=True, help="Stop beyond this, on any node."
)
@click.option(
    "--max-errors-per-s", type=Number(0), default=1.0, show_default=True, help="Stop beyond this, on any node."
)
@click.option(
    "--max-load", type=Number(0, 1), default=0.5, show_default=True, help="CPU share up to which a node is chosen."
)
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write to.")
@click.option("--yes", is_flag=True, help="Ask nothing: begin, and install the model.")
def calibrate(
    config_path: Path,
    pool_name: str | None,
    nodes: tuple[str, ...],
    noise_command: str,
    stop_command: str,
    kind: str,
    intensities: tuple[float, ...],
    rounds: int,
    noise_s: float,
    calm_s: float,
    max_rt_p95_ms: float,
    max_errors_per_s: float,
    max_load: float,
    out: Path,
    yes: bool,
) -> None:
    """Make noise on your own nodes, one at a time, record it, and train a model on that.

    The noise is a command of yours, so it runs where and how you say. It is stopped after its time, and at once when
    response times or errors go beyond the limits, when a node goes quiet, and on Ctrl-C; then nothing is trained. Make
    it end by itself as well ({seconds}), in case the connection to the node breaks. Pause the pool first.
    """
    settings = load(config_path)
    pool = settings.the_pool(pool_name).name
    schedule = NoiseSchedule(nodes, kind, intensities, rounds, noise_s, calm_s, noise_command, stop_command)
    limits = StopLimits(max_rt_p95_ms, max_errors_per_s, max_load)
    if any(out.glob("*.parquet")):
        raise click.UsageError(f"{out}: holds recordings already; name another folder")
    first = " ".join(calibrating.argv_of(noise_command, nodes[0], min(intensities), noise_s))
    click.echo(
        f"{schedule.seconds / 60:.1f} minutes of noise and calm on {', '.join(nodes)}; the first: {first}", err=True
    )
    if not yes:
        click.confirm("Begin?", abort=True, err=True)
    try:
        files = stopping.run(_interruptible(settings, pool, schedule, limits, out))
    except CalibrationError as error:
        kept = ", ".join(str(file) for file in sorted(out.glob("*.parquet")))
        raise CalibrationError(f"{error}{f'; recorded so far: {kept}' if kept else ''}") from None
    today = time.strftime("%Y-%m-%d", time.gmtime())
    made = out / MODEL
    model = train_model([read(file) for file in files], made, f"{pool}-calibrated", today, progress())
    write_report(out / "report.html", model)
    click.echo(describe(model))
    click.echo(f"\nreport: {out / 'report.html'}")
    target = Path(settings.detector.model or Path(settings.state_dir) / MODEL)
    if not yes and not click.confirm(f"Install it as {target}?", err=True):
        click.echo(f"not installed; the model is {made}")
        return
    write_whole(target, bytes_of(made))
    click.echo(f"installed: {target}")
    if settings.detector.model != str(target):
        click.echo(f'set `model = "{target}"` under [detector], then run `slackwater reload`')


async def _interruptible(
    settings: ControllerSettings, pool: str, schedule: NoiseSchedule, limits: StopLimits, out: Path
) -> list[Path]:
    """Runs the calibration. SIGINT and SIGTERM end it as a limit does."""
    work = asyncio.ensure_future(
        calibrating.calibrate(
            settings.controller_bus, pool, schedule, limits, out, lambda text: click.echo(text, err=True)
        )
    )
    stopping.on_stop(work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise CalibrationError("stopped by hand") from None

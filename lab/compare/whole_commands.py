"""The command `slackwater lab evaluate`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from lab.options import progress


@click.command(epilog="Example: slackwater lab evaluate --out evaluation-run --minutes 40")
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="Its folder.")
@click.option("--minutes", type=click.FloatRange(0.1), help="Begin no run that would end later; go on another time.")
@click.option("--plan", "shown", is_flag=True, help="Only say what it would do and about how long it takes.")
@click.option("--simulated", multiple=True, type=click.Path(exists=True, path_type=Path), help="For the page; again.")
def evaluate(folder: Path, minutes: float | None, shown: bool, simulated: tuple[Path, ...]) -> None:
    """Measure the whole evaluation, the most telling runs first, and write its page of what there is.

    The same command goes on where it was. Needs root and a quiet machine. `slackwater lab report --evaluation FOLDER`
    writes the page again.
    """
    from detector.service import choose_model
    from lab.compare import report, whole
    from lab.compare.report_commands import show
    from slackwater.config import DetectorSettings

    if shown:
        for name, about in whole.minutes().items():
            part = whole.PARTS.get(name)
            what = f"{len(part.plan().runs)} runs: {', '.join(part.scenarios)}" if part else "MaxClients x children"
            click.echo(f"{name}: {about:.0f} min, {what}")
        click.echo(f"together about {sum(whole.minutes().values()) / 60:.1f} hours")
        return
    until_s = time.monotonic() + 60.0 * minutes if minutes else float("inf")
    whole.run(folder, progress, until_s)
    parts = whole.parts(folder, simulated)
    show(report.write(parts, folder / "page", choose_model(DetectorSettings()), progress))
    click.echo(f"{folder / 'page' / report.PAGE}")
    if any(one.left for one in parts.planned):
        click.echo("the same command goes on")

"""The command `slackwater lab balance`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from slackwater_lab.cells import until
from slackwater_lab.options import FILE, FOLDER, json_option, minutes_option, progress, write_json


@click.command(epilog="Example: slackwater lab balance --scenarios 100 --seed 7 --out balance --minutes 20")
@click.option("--scenarios", type=click.IntRange(1), default=100, show_default=True, help="Number of drawn scenarios.")
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same scenarios.")
@click.option("--out", "folder", required=True, type=FOLDER, help="The folder that everything is kept in.")
@minutes_option
@click.option("--page", "page_file", type=FILE, help="Write the page of results.")
@click.option("--data", "data_file", type=FILE, help="Write the figures that `slackwater check` reads.")
@json_option
def balance(
    scenarios: int,
    seed: int,
    folder: Path,
    minutes: float | None,
    page_file: Path | None,
    data_file: Path | None,
    json_file: str | None,
) -> None:
    """Find the balance algorithm that works best with Slackwater, in the simulator.

    Plays each drawn scenario under roundrobin, leastconn and random(2), with Slackwater and without, on all cores. The
    same command goes on where it was interrupted. To renew what is shipped: --page docs/results/balance.md --data
    lbengine/backends/haproxy/measured.json.
    """
    from slackwater.core.config import DetectorSettings
    from slackwater.detector.service import choose_model
    from slackwater_lab.compare import balance as compared
    from slackwater_lab.compare import drawn

    model = choose_model(DetectorSettings(model=""))
    played = drawn.run(folder, seed, scenarios, compared.PLAYERS, model, progress, until(minutes))
    command = f"slackwater lab balance --scenarios {scenarios} --seed {seed} --out FOLDER"
    measurement = compared.measured(played, command)
    page = compared.page(measurement)
    if page_file is not None:
        page_file.write_text(page)
    if data_file is not None:
        data_file.write_bytes(msgspec.json.format(msgspec.json.encode(measurement), indent=2) + b"\n")
    if write_json(msgspec.to_builtins(measurement), json_file):
        click.echo(page, nl=False)

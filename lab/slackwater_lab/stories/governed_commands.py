"""The command `slackwater lab governor`."""

from __future__ import annotations

from typing import get_args

import click

from slackwater.core.config.node_changes import GovernorPolicy
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.options import json_option, progress, write_json
from slackwater_lab.stories import governed
from slackwater_lab.stories.governed import GovernorTest


@click.command("governor", epilog="Example: slackwater lab governor --seconds 40 --json governor.json")
@click.option("--seconds", type=click.FloatRange(10), default=40.0, show_default=True, help="Length of each phase.")
@click.option("--target-ms", type=click.FloatRange(1), default=100.0, show_default=True, help="Target of the p95.")
@click.option(
    "--policy",
    type=click.Choice(get_args(GovernorPolicy)),
    default="slackwater",
    show_default=True,
    help="The governor's policy.",
)
@json_option
def governor(seconds: float, target_ms: float, policy: GovernorPolicy, json_file: str | None) -> None:
    """Low load, high, low again, without the governor and with it; then a kill and a stop.

    The governor sets the hosts' cpusets and CPU quotas; a quota stands in for a clock.
    hurry-up and pareto run on the hosts; for hurry-up the application is a search that tells when it searches.
    """
    settings = LabSettings(
        hosts=governed.HOSTS,
        quota_cores=governed.QUOTA_CORES,
        period_s=governed.PERIOD_S,
        app=governed.APP.get(policy, LabSettings.app),
    )
    with Lab(settings, progress) as cluster:
        result = governed.run(cluster, GovernorTest(target_ms, seconds, policy), progress)
    write_json(result, json_file)

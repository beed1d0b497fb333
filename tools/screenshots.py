"""Takes the screenshots of the dashboard in docs/: a whole controller over a made-up cluster, with neighbours that come
and go. Run it as `make screenshots`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slackwater_lab.bench.web import browser_environment
from tests.support.live_cluster import PASSWORD, live_cluster
from tests.support.paths import ROOT

SETTLE_S = 14.0
"""An outcome is known 10 s after a change."""
DWELL_S = 30.0
"""A drained server of the made-up cluster looks calm: its episode must last until all pictures are taken."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: python -m tools.screenshots --all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/screenshots")
    parser.add_argument("--all", action="store_true", help="every page in both widths and schemes")
    asked = parser.parse_args()
    out: Path = asked.out
    everything: bool = asked.all
    with (
        tempfile.TemporaryDirectory() as folder,
        live_cluster(Path(folder), f"[detector]\ncalm_dwell_s = {DWELL_S}\n") as cluster,
    ):
        time.sleep(SETTLE_S)
        cluster.noise("host2")
        time.sleep(SETTLE_S)
        cluster.calm()
        time.sleep(DWELL_S + SETTLE_S)
        cluster.noise("host1")
        time.sleep(SETTLE_S)
        shots = Path(folder) / "shots"
        shots.mkdir()
        script = str(ROOT / "tests/browser/screenshots.mjs")
        command = ["node", script, cluster.url, str(shots), PASSWORD, *(["all"] if everything else [])]
        subprocess.run(command, check=True, env=browser_environment())
        out.mkdir(parents=True, exist_ok=True)
        for shot in sorted(shots.glob("*.png")):
            shutil.copy(shot, out / shot.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

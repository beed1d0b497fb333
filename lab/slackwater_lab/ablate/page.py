"""The page of the ablation, drawn from its data file alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from slackwater_lab.ablate.data import CODE, Line, code_digest, of_one_state
from slackwater_lab.ablate.mechanisms import MECHANISMS
from slackwater_lab.ablate.summary import BRINGS, ENOUGH, HARMS, LITTLE, UNSURE, WORSE, summary
from slackwater_lab.cells import templates
from slackwater_lab.compare.statistics import Estimate

TEMPLATES = templates("slackwater_lab.ablate")


def page(lines: Sequence[Line], data: str, place: str) -> str:
    """The page in Markdown; `data` and `place` are the paths of the data file and of this page in the commands."""
    current = of_one_state(lines)
    files = ["--data", data, "--page", place]
    seeds = {
        seed: 1 + max(line.number for line in current if line.seed == seed)
        for seed in sorted({m.seed for m in current})
    }
    balances = [word for balance in dict.fromkeys(line.balance for line in current) for word in ("--balance", balance)]
    return TEMPLATES.get_template("ablation.md.jinja").render(
        commands=[
            shlex.join(
                ["slackwater", "lab", "ablate", "--seed", str(seed), "--scenarios", str(count), *balances, *files]
            )
            for seed, count in seeds.items()
        ],
        replay=shlex.join(["slackwater", "lab", "ablate", *files, "--replay"]),
        lines=current,
        others=len(lines) - len(current),
        commits=Counter(line.commit or "not recorded" for line in current),
        machines=Counter(line.machine for line in current),
        hours=sum(line.cpu_s for line in current) / 3600,
        balances=summary(current),
        guards=[mechanism for mechanism in MECHANISMS.values() if mechanism.guards],
        words=(BRINGS, LITTLE, UNSURE, HARMS),
        worse=WORSE,
        enough=ENOUGH,
        code=CODE,
        now=code_digest(),
        shown=shown,
    )


def shown(ratio: Estimate) -> str:
    """`1.012 (0.998 to 1.031)`; without an interval where there are too few scenarios."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"

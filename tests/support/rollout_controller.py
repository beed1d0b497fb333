"""What the controller of the test hosts says, and an Order in its place."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from slackwater.core.bus.bus import Bus
from slackwater.core.messages import Order
from slackwater.orders.signing import Signer
from tests.support.rollout_ansible import Site
from tests.support.rollout_floods import controllers_bus


def states(site: Site) -> dict[str, str]:
    """Node -> its state; nothing while the controller does not answer."""
    done = site.hosts.ssh("lb1", "slackwater status --json", check=False)
    rows = json.loads(done.stdout)["pools"][0]["rows"] if done.returncode == 0 else []
    return {row["node"]: row["state"] for row in rows}


def is_in_mode(site: Site, mode: str) -> bool:
    done = site.hosts.ssh("lb1", "slackwater status --json", check=False)
    return done.returncode == 0 and json.loads(done.stdout)["pools"][0]["mode"] == mode


def changes_of(site: Site, node: str) -> list[dict[str, Any]]:
    """Weights of its server that were decided, as `slackwater log` shows them."""
    lines = site.hosts.ssh("lb1", "slackwater log --json").stdout.splitlines()
    return [change for change in map(json.loads, lines) if change["what"] == "weight" and change["target"] == node]


def send_order(site: Site, folder: Path, order: Order) -> None:
    """Sends it under the controller's name, with its key."""
    line = re.search(r"(?m)^orders_key: (.*)$", site.secrets())
    assert line
    key = folder / "orders.key"
    key.write_text(json.loads(line[1]))
    key.chmod(0o600)

    async def send() -> None:
        bus = await Bus.connect(controllers_bus(site, folder), "test")
        try:
            await bus.publish(order, headers=Signer.load(key).headers)
            await bus.flush()
        finally:
            await bus.close()

    asyncio.run(send())

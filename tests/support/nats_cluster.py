"""A cluster of real nats-servers."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

from slackwater.core.bus import nats_server
from tests.support.real_lab import eventually
from tests.support.real_processes import free_address

ELECTED_WITHIN_S = 60.0


class NatsCluster:
    """Three servers; `start` runs some of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listens = [free_address() for _ in range(3)]
        self.pages = [free_address() for _ in range(3)]
        self.processes: list[subprocess.Popen[bytes]] = []
        routes = [free_address() for _ in range(3)]
        for number, (listen, route) in enumerate(zip(self.listens, routes, strict=True)):
            others = ", ".join(f'"nats-route://{other}"' for other in routes if other != route)
            (folder / f"{number}.conf").write_text(
                f'server_name: "s{number}"\nlisten: "{listen}"\nhttp: "{self.pages[number]}"\n'
                f'jetstream: {{ store_dir: "{folder}/{number}" }}\n'
                f'cluster {{ name: "c", listen: "{route}", routes: [{others}] }}\n'
            )

    def start(self, *numbers: int) -> None:
        for number in numbers:
            command = ["nats-server", "-c", str(self.folder / f"{number}.conf"), "-l", str(self.folder / "log")]
            self.processes.append(subprocess.Popen(command))
        for number in numbers:
            nats_server.wait_until_it_answers(self.listens[number], self.folder / "log")
        if len(numbers) == 3:  # before they have met, a store has one copy and what is asked may stay unanswered
            eventually("three servers have met", lambda: any(self.leads_two(n) for n in numbers), ELECTED_WITHIN_S)

    def leads_two(self, number: int) -> bool:
        """Whether this server leads, and both others follow it."""
        try:
            with urllib.request.urlopen(f"http://{self.pages[number]}/jsz", timeout=5) as page:
                followers = json.load(page).get("meta_cluster", {}).get("replicas", [])
        except OSError:  # it is busy
            return False
        return len(followers) == 2 and all(follower["current"] for follower in followers)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def url(self, number: int) -> str:
        return f"nats://{self.listens[number]}"

"""The lab's bus between two runs."""

from __future__ import annotations

from pathlib import Path

from slackwater.core.bus.config import ListedNode
from slackwater.core.bus.nats_server import change_nodes
from slackwater.core.config import ControllerSettings
from slackwater_lab.cluster.bus import forget


def test_a_run_forgets_what_an_earlier_one_learned_but_not_the_passwords_that_guests_have_read(tmp_path: Path) -> None:
    """A guest caches what it has read: with a new password its monitor was refused for ever."""
    settings = ControllerSettings(pool=[], state_dir=str(tmp_path))
    change_nodes(settings, lambda _: [ListedNode("web", "host1")])
    password = settings.bus_folder / "passwords/host1.password"
    before = password.read_text()
    (tmp_path / "jetstream").mkdir()
    for name in ("journal.sqlite", "jetstream/leases"):
        (tmp_path / name).write_text("learned")
    forget(tmp_path)
    change_nodes(settings, lambda _: [ListedNode("web", "host1")])
    assert password.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["bus"]
    forget(tmp_path / "nowhere")

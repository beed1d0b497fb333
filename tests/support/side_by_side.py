"""Which tests must not run at the same time, when pytest runs them in several processes (`pytest --numprocesses`)."""

from __future__ import annotations

import pytest

MACHINE = "machine"
"""Those that use what a machine has once: the lab's names, its cgroups, the IP_VS guest, the hosts of the rollout."""
FIXTURES = {"running_guest"}


def register(config: pytest.Config) -> None:
    """In one process nothing changes."""
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(Groups())


class Groups:
    """A plugin. A group's tests run in one process, one after the other: those of `MACHINE`, and those of each file."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.add_marker(pytest.mark.xdist_group(MACHINE if _uses_machine(item) else item.nodeid.partition("::")[0]))


def _uses_machine(item: pytest.Item) -> bool:
    return item.get_closest_marker("lab") is not None or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))

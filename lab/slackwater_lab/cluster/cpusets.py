"""A cpuset for a host of the lab, which has none of its own: so that its web server's cores can be set.

On version 1 it is a tree beside those of `slackwater_lab.cluster.cgroups`, and what runs in the host's cgroup is moved
into it. On version 2 it is the same cgroup.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.cluster.paths import LabError

V1 = Path("/sys/fs/cgroup/cpuset")
EMPTY_WITHIN_S = 5.0


class Cpuset:
    """Inside `with` the cgroup at `path` has a cpuset with all cores; after it, the tree of version 1 is gone."""

    def __init__(self, cgroups: Cgroups, path: str, root: Path = V1) -> None:
        self._cgroups, self._path, self._root = cgroups, path, root
        self._made: list[Path] = []
        self._enabled: list[Path] = []

    @property
    def file(self) -> Path:
        """The kernel's file with the cgroup's cores."""
        return (self._root if self._cgroups.version == 1 else self._cgroups.roots[0]) / self._path / "cpuset.cpus"

    def __enter__(self) -> Cpuset:
        if self._cgroups.version == 2:
            self._enable()
            return self
        if not (self._root / "cpuset.cpus").exists():
            raise LabError(f"{self._root} has no cpuset.cpus: the cpuset controller is not mounted here")
        place = self._root
        for part in Path(self._path).parts:
            above, place = place, place / part
            if not place.exists():
                place.mkdir()
                self._made.append(place)
            for name in ("cpuset.cpus", "cpuset.mems"):
                (place / name).write_text((above / name).read_text())
        for pid in self._cgroups.pids(self._path):
            with contextlib.suppress(ProcessLookupError):
                (place / "cgroup.procs").write_text(str(pid))
        return self

    def _enable(self) -> None:
        place = self._cgroups.roots[0]
        for part in Path(self._path).parts:
            control = place / "cgroup.subtree_control"
            if "cpuset" not in control.read_text().split():
                control.write_text("+cpuset")
                self._enabled.append(control)
            place = place / part

    def __exit__(self, *_: object) -> None:
        for control in reversed(self._enabled):
            with contextlib.suppress(OSError):
                control.write_text("-cpuset")
        for place in reversed(self._made):
            deadline_s = time.monotonic() + EMPTY_WITHIN_S
            while pids := (place / "cgroup.procs").read_text().split():
                for pid in pids:
                    with contextlib.suppress(OSError):
                        (self._root / "cgroup.procs").write_text(pid)
                if time.monotonic() >= deadline_s:
                    break
            place.rmdir()

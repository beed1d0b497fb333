"""The controller's package has all that its code imports and reads, and runs from where it was unpacked."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slackwater.controller.cli.commands import SERVICES
from slackwater.controller.cli.main import ADDED, COMMANDS, HIDDEN, NEEDS
from tests.support.built_packages import build, packaging_module, unpacked
from tests.support.paths import ROOT
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy
from tests.support.real_wsengine import make_keys
from tests.support.served_site import CHILDREN, IN_TIME_S, Site, until

STAYED_UP_S = 5.0
HANGS_S = 280.0
"""A command that takes longer hangs, however busy the machine is."""
PACKAGE_BYTES, INSTALLED_BYTES = 60_000_000, 300_000_000
"""What the controller's package may take, and what is installed from it."""
CALLS = """
import pathlib, tempfile
from types import SimpleNamespace
import numpy, skops.io
from slackwater.detector.classify.tree import SHIPPED, load
from slackwater.detector.tail.regressors import Forest, Svm
from slackwater.detector.train.scores import rate_interval, share_interval
from sklearn import metrics
from sklearn.tree import DecisionTreeClassifier

random = numpy.random.default_rng(1)
values = random.random((60, 3))
labels = (values[:, 0] > 0.5).astype(int)
tree = DecisionTreeClassifier(max_depth=3).fit(values, labels)
metrics.f1_score(labels, tree.predict(values))
file = pathlib.Path(tempfile.mkdtemp()) / "tree.skops"
skops.io.dump(tree, file)
file.unlink()
file.parent.rmdir()
load(SHIPPED)
rows = SimpleNamespace(inputs=values, p95_ms=1.0 + values[:, 1])
for regressor in (Forest(), Svm()):
    regressor.fit(rows)
    assert len(regressor.predict_ms(values)) == 60
assert share_interval(3, 4) and rate_interval(2, 3.0)
print("all there")
"""
"""Calls what our code calls of scikit-learn, scipy and skops."""
WALK = """
import json, click
from slackwater.controller.cli.main import COMMANDS, HIDDEN, cli

def walk(command, words):
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        names = [*COMMANDS, *HIDDEN] if command is cli else command.list_commands(context)
        for name in names:
            yield from walk(command.get_command(context, name), [*words, name])

print(json.dumps(list(walk(cli, []))))
"""
"""Prints the words of every subcommand, the hidden ones too."""


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our Python code as the Debian package has it."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    builder = packaging_module("build")
    stage = tmp_path_factory.mktemp("stage")
    builder.stage_python(stage)
    return stage


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- what it has


def imported(source: str) -> Iterator[str]:
    """The modules that a source names in its imports, anywhere in it; `from a import b` may mean the module `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert not node.level, "relative imports are not followed here"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def place_of(module: str, under: Path) -> Path | None:
    stem = under.joinpath(*module.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.exists()), None)


def reached() -> tuple[set[str], set[str]]:
    """Our modules that commands without the lab may import, and the other packages that those import."""
    waiting = ["slackwater.controller.cli.main", *SERVICES.values()]
    waiting += [entry[0].partition(":")[0] for name, entry in (COMMANDS | HIDDEN).items() if entry[0] != ADDED]
    ours: set[str] = set()
    others: set[str] = set()
    while waiting:
        module = waiting.pop()
        parts = module.split(".")
        if place_of(parts[0], ROOT) is None:
            others.add(parts[0])
            continue
        place = place_of(module, ROOT)
        if module in ours or place is None:  # a name within a module
            continue
        ours.add(module)
        waiting += [".".join(parts[:length]) for length in range(1, len(parts))]
        waiting += imported(place.read_text())
    return ours, others


def test_every_module_that_may_be_imported_is_in_the_package(site_packages: Path) -> None:
    ours, _ = reached()
    assert {
        "slackwater.controller.supervise.serve",
        "slackwater.retune.service",
        "slackwater.web.service",
        "slackwater.controller.cli.detector_commands",
    } <= ours, "the walk sees too little"
    assert sorted(module for module in ours if place_of(module, site_packages) is None) == []
    assert [place.name for place in site_packages.iterdir()] == ["slackwater"]


def test_every_other_package_that_may_be_imported_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]["otlp"]
    pinned = {line.partition("==")[0] for line in (*project["dependencies"], *optional)}
    distributions = importlib.metadata.packages_distributions()
    _, others = reached()
    assert {"click", "pyarrow"} <= others, "the walk sees too little"
    for package in sorted(others - sys.stdlib_module_names - set(NEEDS["lab"])):
        names = {re.sub(r"[-_.]+", "-", name).lower() for name in distributions[package]}
        assert names & pinned, f"{package} is imported, and pyproject.toml has none of {names}"


def test_the_wheel_has_the_same_files(site_packages: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(site_packages, copy)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    made = tmp_path / "wheel"
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(made))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True)
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        inside = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert inside == files(site_packages)
    data = ("retune/knowledge.toml", "detector/models/start.skops", "detector/recordings/try.jsonl.xz")
    assert {f"slackwater/{name}" for name in data} <= inside


def test_a_recorded_cluster_plays_from_the_package_alone(site_packages: Path) -> None:
    """Without the checkout, the lab and the packages that the lab needs."""
    source = f"import sys; sys.path.insert(0, {str(site_packages)!r})\n"
    source += f"sys.modules.update(dict.fromkeys({NEEDS['lab']!r}))\n"
    source += "from slackwater.controller.cli.main import cli; import slackwater; print(slackwater.__file__)\n"
    source += "cli(['try', '--no-page', '--json', '--speed', '1000'])"
    done = run(sys.executable, "-I", "-c", source)
    assert done.returncode == 0, done.stderr
    place, *events = done.stdout.splitlines()
    assert Path(place).is_relative_to(site_packages)
    assert "would_change" in {json.loads(line)["event"] for line in events}


def test_what_is_left_out_is_found_by_name(tmp_path: Path) -> None:
    environment = packaging_module("environment")
    kept = {
        "scipy/stats/stats.py",
        "numpy/_core/multiarray.so",
        "numpy/1.dist-info/METADATA",
        "scipy/special/cephes.so",
    }
    left_out = {
        *("numpy/_core/include/numpy.h", "scipy/special.pyi", "sklearn/tree/tests/test_tree.py", "scipy/signal/a.py"),
        *("numpy-1.dist-info/RECORD", "bin/f2py", "scipy/io/_fast_matrix_market/_fmm_core.so"),
    }
    for name in kept | left_out:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    environment.leave_out(tmp_path)
    assert files(tmp_path) == kept


# --- that it runs


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("controller"), "slackwater-controller")


@pytest.fixture(scope="module")
def root(package: Path) -> Path:
    """The package, unpacked where nothing else is."""
    return unpacked(package, package.parent / "root")


def program(root: Path) -> list[str]:
    """`slackwater` of the package: its script names the interpreter by the path that it has once it is installed."""
    script = root / "usr/bin/slackwater"
    interpreter, *options = script.read_text().splitlines()[0].removeprefix("#!/").split()
    return [str(root / interpreter), *options, str(script)]


def clean_environment() -> dict[str, str]:
    """Without what would have Python look into the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment() | {"COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=HANGS_S)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_is_no_larger_than_promised(package: Path, root: Path) -> None:
    asked = subprocess.run(
        ["dpkg-deb", "-f", str(package), "Installed-Size"], capture_output=True, text=True, check=True
    )
    installed_bytes = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())
    assert package.stat().st_size <= PACKAGE_BYTES
    assert installed_bytes <= int(asked.stdout) * 1024 <= INSTALLED_BYTES


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_children_and_training_call_of_others_is_there(root: Path) -> None:
    """Not all of it is loaded when a module is imported."""
    interpreter, option, _ = program(root)
    done = run(interpreter, option, "-c", CALLS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all there\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_subcommand_says_what_it_does(root: Path) -> None:
    interpreter, option, _ = slackwater = program(root)
    walked = run(interpreter, option, "-c", WALK)
    assert walked.returncode == 0, walked.stderr
    commands: list[list[str]] = json.loads(walked.stdout)
    assert {tuple(words) for words in ([], ["serve"], ["lab"], ["detector", "evaluate"])} <= set(map(tuple, commands))
    with ThreadPoolExecutor(2) as pool:
        printed = list(pool.map(lambda words: run(*slackwater, *words, "--help"), commands))
    for words, done in zip(commands, printed, strict=True):
        assert done.returncode == 0, f"slackwater {' '.join(words)} --help: {done.stderr}"
        assert done.stdout.startswith("Usage: slackwater")
    site = root / "opt/slackwater/lib/python3.11/site-packages"
    assert not [name for name in NEEDS["lab"] if (site / name).exists()]
    for name in NEEDS:
        done = run(*slackwater, name)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "pip install . ./lab in a checkout of Slackwater" in done.stderr


class PackagedSite(Site):
    """A site whose `slackwater` is the package's."""

    def __init__(self, folder: Path, balancer: RealHAProxy, root: Path) -> None:
        super().__init__(folder, balancer)
        self.program = program(root)
        self.environment = clean_environment()

    def lives(self) -> dict[str, int]:
        """Pids of the children; fails when one had to be started again."""
        log = self.log.read_text()
        assert "starting it again" not in log, log
        return self.children()


def age_s(pid: int) -> float:
    """How long a process has been there."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - int(fields[19]) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_haproxy
@pytest.mark.parametrize("mode", ["observe", "act"])
def test_a_controller_with_a_second_stage_stays_up(mode: str, root: Path, tmp_path: Path) -> None:
    with haproxy(backend([1, 2, 3])) as balancer:
        site = PackagedSite(tmp_path, balancer, root)
        private, _ = make_keys(tmp_path)
        with site.config.open("a") as file:
            file.write(f'[retune]\nmode = "{mode}"\norder_key = "{private}"\n')
        try:
            serving = site.serve()
            first = site.lives()
            assert set(first) == CHILDREN | {"retune"}
            until(lambda: min(map(age_s, site.lives().values())) >= STAYED_UP_S, "all children are up for a while")
            assert site.lives() == first
            until(lambda: f"second stage: {mode}" in site.log.read_text(), "the second stage")
            site.wait_for_cycles()
            for name, pid in first.items():
                command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                assert name == "nats-server" or command[0].startswith(str(root)), command
            assert site.lives() == first
            serving.terminate()
            assert serving.wait(IN_TIME_S) == 0
        finally:
            site.clean()

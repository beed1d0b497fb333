"""tools/setup.py: which steps are done, in which order, and what it says; no package is fetched here."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools import setup, setup_arm64, setup_base, setup_debian, setup_guests, setup_releases, systems
from tools.setup import Step


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STAMPS", "LOGS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(setup_base, name, tmp_path / name)
    monkeypatch.setattr(setup, "STAMPS", tmp_path / "STAMPS")
    monkeypatch.setattr(setup, "REPORT_EVERY_S", 0.01)


def step(name: str, run: Callable[[], None] = lambda: None, **rest: object) -> Step:
    return Step(name, lambda: [b"same"], lambda: True, run, **rest)  # type: ignore[arg-type]


def test_a_step_waits_for_those_it_needs_and_others_run_beside_it() -> None:
    order: list[str] = []
    beside = threading.Event()

    def first() -> None:
        assert beside.wait(30), "the step that needs nothing did not run at the same time"
        order.append("first")

    steps = [
        step("second", lambda: order.append("second"), after=("first",)),
        step("first", first),
        step("beside", beside.set),
    ]
    assert setup.carry_out(steps) == []
    assert order == ["first", "second"]
    assert all(setup_step.up_to_date() for setup_step in steps)


def test_what_fails_leaves_no_stamp_and_what_needs_it_is_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise setup_base.SetupError("no such program; apt-get install it")

    asked: list[str] = []
    steps = [
        step("first", fail),
        step("second", lambda: asked.append("second"), after=("first",)),
        step("third", lambda: asked.append("third"), after=("second",)),
        step("other"),
    ]
    failures = setup.carry_out(steps)
    assert asked == []
    assert failures[0] == "first: no such program; apt-get install it"
    assert {failure.partition(":")[0] for failure in failures} == {"first", "second", "third"}
    assert [setup_step.name for setup_step in steps if setup_step.up_to_date()] == ["other"]
    assert "setup: first: FAILED" in capsys.readouterr().out


def test_a_step_of_the_demo_is_left_out_when_the_larger_one_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, part = step("whole"), step("part", part_of="whole")
    monkeypatch.setattr(setup, "TEST", (whole,))
    monkeypatch.setattr(setup, "PARTS", {"demo": (part,), "test": (whole,)})
    assert setup.to_do("demo") == [part]
    setup.carry_out([part])
    assert setup.to_do("demo") == []
    assert setup.to_do("test") == [whole], "the demo's part is not the whole"
    (setup_base.STAMPS / "part").unlink()
    setup.carry_out([whole])
    assert setup.to_do("demo") == []


def test_an_archive_that_cannot_be_reached_takes_only_its_own_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    brought: list[str] = []

    def bring(release: setup_releases.Release) -> None:
        if release.system == systems.UBUNTU_24_04:
            raise setup_base.SetupError("no route to the archive")
        brought.append(release.system.title)

    monkeypatch.setattr(setup_releases, "bring", bring)
    setup_releases.bring_all()
    assert {*brought, "Ubuntu 24.04"} == {release.system.title for release in setup_releases.RELEASES}
    printed = capsys.readouterr().out
    assert "haproxy-2.8" in printed
    assert "python3.12" in printed
    assert "no route to the archive" in printed


def test_steps_that_are_named_exist() -> None:
    for steps in setup.PARTS.values():
        names = {setup_step.name for setup_step in steps}
        assert all(set(setup_step.after) <= names for setup_step in steps)
    assert {setup_step.part_of for setup_step in setup.DEMO} <= {setup_step.name for setup_step in setup.TEST}
    assert len({setup_step.name for steps in setup.PARTS.values() for setup_step in steps}) == sum(
        map(len, setup.PARTS.values())
    )


def test_the_log_says_how_far_cargo_is() -> None:
    log = "   Compiling libc v0.2\n    Building [====>      ] 12/245: libc\r    Building [=====>     ] 13/245: serde\r"
    assert setup_base.crates_built(log) == "13 of 245 crates"
    assert setup_base.crates_built("Collecting numpy\n") == ""


def test_one_package_is_taken_from_a_lock_with_its_hashes() -> None:
    text = (ROOT / setup.DEV_LOCK).read_text()
    lines = setup.locked_package(text, "setuptools")
    assert lines.startswith("setuptools==")
    assert len(re.findall(r"^\S+==", lines, re.MULTILINE)) == 1
    assert "--hash=sha256:" in lines
    with pytest.raises(setup_base.SetupError, match="has no nothing-of-the-kind"):
        setup.locked_package(text, "nothing-of-the-kind")


def test_a_debian_package_is_in_one_list() -> None:
    demo, rest = (set(setup_debian.package_names([name])) for name in (setup_debian.DEMO_LIST, setup_debian.TEST_LIST))
    assert demo
    assert not demo & rest
    assert set(setup_debian.DEMO_PROGRAMS) <= set(setup_debian.PROGRAMS)


@pytest.mark.parametrize("rustup", ["", "echo no network >&2; exit 1"], ids=["without rustup", "rustup fails"])
def test_a_rust_that_cannot_build_for_arm64_says_what_to_do(
    rustup: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in {"rustc": f"echo {tmp_path}/nowhere", "rustup": rustup}.items():
        if script:
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup_base.SetupError, match="`rustup target add aarch64-unknown-linux-gnu`") as caught:
        setup_arm64.rust_target()
    assert ("no network" in str(caught.value)) == bool(rustup)


def test_arm64_is_brought_only_for_those_who_ask() -> None:
    asked = {step.name for step in setup.ARM64}
    assert not asked & {step.name for part in ("demo", "test") for step in setup.PARTS[part]}
    for target in ("demo", "test", "deb"):
        planned = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert "setup.py arm64" not in planned
    command = ["make", "-n", "deb", "DEB_ARCH=arm64", "DEB_RELEASE=trixie"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "setup.py arm64" in planned
    assert "packaging/build.py --revision 1 --release trixie --architecture arm64" in planned


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's cache without the guests' kernel, and a checkout without a link to it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(setup_guests, "KERNEL", tmp_path / "build/uml/linux")
    monkeypatch.setattr(setup_guests, "BUILD", tmp_path)


@pytest.mark.usefixtures("empty_cache")
def test_a_kernel_that_is_kept_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_guests, "build", lambda _: pytest.fail("it was built again"))
    kernel = setup_guests.kept()
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"kernel")
    assert not setup_guests.present()
    setup_guests.kernel_run()
    assert setup_guests.present()
    assert setup_guests.KERNEL.read_bytes() == b"kernel"
    monkeypatch.setattr(setup_guests, "CLOCK", "/* another clock */")
    assert not setup_guests.present(), "a kernel of other sources is another kernel"


def test_a_kernel_s_source_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "linux-source.deb"
    archive.write_bytes(b"something else")
    monkeypatch.setattr(setup_guests, "run", lambda *_, **__: None)
    monkeypatch.setattr(setup_guests, "downloaded", lambda *_: [archive])
    monkeypatch.setattr(systems, "mirror", lambda: "http://mirror.test/debian")
    with pytest.raises(setup_base.SetupError, match=rf"SHA-256 \w+; expected {setup_guests.SHA256}"):
        setup_guests.source_package(tmp_path)


def test_the_guests_kernel_is_built_only_for_those_who_ask() -> None:
    asked = {step.name for step in setup.GUESTS}
    assert not asked & {step.name for part in ("demo", "test") for step in setup.PARTS[part]}
    for target in ("demo", "test"):
        planned = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert "setup.py guests" not in planned

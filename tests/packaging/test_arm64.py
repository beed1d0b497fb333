"""The packages for arm64, built on a machine of another kind: what is in them, and the node's programs under QEMU's
user emulator, beside this machine's own programs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.built_packages import arm64_ready, build, unpacked
from tests.support.paths import ROOT
from tools import setup_arm64
from tools.setup_rust import RUST_BINARIES

# The programs are cross-built, some minutes once; the controller's wheels are fetched.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(setup_arm64.is_native(), reason="an arm64 machine runs the programs itself"),
]
SETTINGS = """
node = "web1"
[privileges]
seccomp = "off"
[pmu]
enabled = false
[sniffer]
interface = ""
"""
AARCH64 = 183
"""The machine in the head of an ELF file (`e_machine`)."""
LIMIT_BYTES = 60_000_000
PORTS = [word for port in (80, 5000, 8080, 9200, 11211) for word in ("--port", str(port))]
CAPTURES = Path(os.environ.get("SLACKWATER_PCAPS", ROOT / "../shared/pcaps/given"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arm64_ready()
    return build(tmp_path_factory.mktemp("node"), "slackwater-node", "--architecture", "arm64")


@pytest.fixture(scope="module")
def root(node: Path) -> Path:
    return unpacked(node, node.parent / "root")


def machines(folder: Path) -> Iterator[tuple[str, int]]:
    """Each ELF file below a folder, with its machine."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                head = file.read(20)
            if head.startswith(b"\x7fELF"):
                yield path.name, int.from_bytes(head[18:20], "little")


def field(package: Path, name: str) -> str:
    return subprocess.run(["dpkg-deb", "-f", str(package), name], capture_output=True, text=True, check=True).stdout


def emulated(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A program with Debian 12's libraries for arm64; sockets, system calls and /proc are this machine's."""
    command = [setup_arm64.EMULATOR, "-L", str(setup_arm64.SYSTEM), str(program), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def here(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """This machine's own."""
    return subprocess.run([str(ROOT / "target/release" / name), *words], capture_output=True, text=True, timeout=600)


def test_the_node_s_package_is_for_arm64_and_has_the_same_bytes_twice(node: Path, root: Path, tmp_path: Path) -> None:
    assert field(node, "Architecture").strip() == "arm64"
    assert node.name.endswith("_arm64.deb")
    assert dict(machines(root)) == dict.fromkeys(RUST_BINARIES, AARCH64)
    for name in RUST_BINARIES:
        assert str(setup_arm64.SYSTEM).encode() not in (root / "usr/bin" / name).read_bytes()
    again = build(tmp_path, "slackwater-node", "--architecture", "arm64", LANG="C", TZ="Asia/Tokyo")
    assert again.read_bytes() == node.read_bytes()


@pytest.mark.parametrize("name", RUST_BINARIES)
@pytest.mark.parametrize("word", ["--version", "--help"])
def test_each_program_says_of_itself_what_this_machine_s_does(name: str, word: str, root: Path) -> None:
    done = emulated(root / "usr/bin" / name, word)
    assert done.returncode == 0, done.stderr
    assert done.stdout == here(name, word).stdout


def test_the_monitor_makes_a_sample_with_the_same_sections(root: Path, tmp_path: Path) -> None:
    """The emulator has no system call filters, no capture by libpcap and no hardware counters: those are left out here,
    and run on an emulated machine in tests/monitor/test_pmu_guest.py."""
    settings = tmp_path / "node.toml"
    settings.write_text(SETTINGS)
    words = ("once", "--json", "--config", str(settings))
    done = emulated(root / "usr/bin/slackwater-monitor", *words)
    assert done.returncode == 0, done.stderr
    sample, own = json.loads(done.stdout), json.loads(here("slackwater-monitor", *words).stdout)
    assert sample.keys() == own.keys()
    assert {"cpu", "memory", "canary"} <= sample.keys()
    assert sample["canary"]["llc_cycles_per_load"] > 0


@pytest.mark.skipif(not CAPTURES.exists(), reason=f"needs captures in {CAPTURES} (SLACKWATER_PCAPS)")
def test_the_sniffer_reads_each_capture_as_this_machine_s_does(root: Path) -> None:
    captures = sorted(CAPTURES.glob("*.pcap"))
    exchanges = 0
    for capture in captures:
        words = ("read", str(capture), *PORTS, "--exchanges", "--json", "--histograms")
        done, expected = emulated(root / "usr/bin/slackwater-sniffer", *words), here("slackwater-sniffer", *words)
        assert done.returncode == expected.returncode, f"{capture.name}: {done.stderr}"
        assert done.stdout == expected.stdout, capture.name
        exchanges += len(done.stdout.splitlines()) - 1
    assert exchanges > len(captures), "hardly any request was found"


def test_the_controller_s_package_has_only_libraries_for_arm64(tmp_path: Path) -> None:
    package = build(tmp_path / "package", "slackwater-controller", "--architecture", "arm64")
    assert field(package, "Architecture").strip() == "arm64"
    assert package.stat().st_size <= LIMIT_BYTES
    built_for = list(machines(unpacked(package, tmp_path / "root")))
    assert len(built_for) > 50
    assert [name for name, machine in built_for if machine != AARCH64] == []
    assert any(name.endswith(".cpython-311-aarch64-linux-gnu.so") for name, _ in built_for)

"""The Debian packages: what is in them, and that the same sources give the same bytes."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

import pytest

from slackwater.controller.haproxy_init import written_files
from slackwater.controller.haproxy_init.site_files import write, write_settings
from tests.support.built_packages import build, packaging_module, unpacked
from tests.support.paths import ROOT, copy_of_checkout
from tools.systems import own_architecture


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("node"), "slackwater-node")


def test_the_same_sources_give_the_same_bytes_whoever_builds_where_and_when(node: Path, tmp_path: Path) -> None:
    again = build(tmp_path, "slackwater-node", LANG="C", TZ="Asia/Tokyo")
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(node.read_bytes()).digest()


def test_the_node_s_package_has_programs_units_pages_and_nothing_of_the_build(node: Path, tmp_path: Path) -> None:
    root = unpacked(node, tmp_path / "root")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    for program in ("slackwater-monitor", "slackwater-sniffer", "slackwater-wsengine"):
        assert f"usr/bin/{program}" in files
        assert f"usr/share/man/man1/{program}.1.gz" in files
        assert f"usr/share/bash-completion/completions/{program}" in files
        listed = subprocess.run(["chrpath", "-l", str(root / "usr/bin" / program)], capture_output=True, text=True)
        assert "PATH=" not in listed.stdout, "a library path of the checkout would be searched on the hosts"
    assert {"lib/systemd/system/slackwater-monitor.service", "usr/lib/sysusers.d/slackwater-node.conf"} <= files
    ours_to_bring = {f"etc/apparmor.d/{name}" for name in ("slackwater-monitor", "slackwater-wsengine")}
    assert {name for name in files if name.startswith(("etc/", "usr/local/", "var/"))} == ours_to_bring, (
        "configuration is the site's"
    )
    kept = (root / "DEBIAN/conffiles").read_text().splitlines()
    assert {name.removeprefix("/") for name in kept} == ours_to_bring, "a site's changes would be overwritten"


def test_control_and_scripts_are_what_dpkg_and_sh_accept(node: Path, tmp_path: Path) -> None:
    fields = subprocess.run(["dpkg-deb", "-f", str(node)], capture_output=True, text=True, check=True).stdout
    printed = dict(line.split(": ", 1) for line in fields.splitlines() if ": " in line and not line.startswith(" "))
    assert printed["Package"] == "slackwater-node"
    assert printed["Version"].endswith("-7")
    assert "libpcap0.8" in printed["Depends"]
    root = unpacked(node, tmp_path / "root")
    for script in ("postinst", "prerm", "postrm"):
        assert (root / "DEBIAN" / script).stat().st_mode & 0o777 == 0o755
        subprocess.run(["sh", "-n", str(root / "DEBIAN" / script)], check=True)
    listed = (root / "DEBIAN/md5sums").read_text().splitlines()
    for line in listed:
        digest, name = line.split("  ", 1)
        assert hashlib.md5((root / name).read_bytes()).hexdigest() == digest
    assert not [path for path in root.rglob("*") if path.stat().st_mode & 0o022 and not path.is_symlink()]


@pytest.mark.parametrize("package", ["controller", "node"])
def test_a_service_that_does_not_start_after_an_upgrade_leaves_no_package_half_installed(
    package: str, tmp_path: Path
) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    asked = tmp_path / "asked"
    (programs / "systemctl").write_text(f'#!/bin/sh\necho "$1" >> {asked}\n[ "$1" != try-restart ]\n')
    (programs / "systemctl").chmod(0o755)
    for name in ("systemd-sysusers", "systemd-tmpfiles"):
        (programs / name).symlink_to("/bin/true")
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "DPKG_ROOT": str(tmp_path)}
    script = ["sh", str(ROOT / "packaging" / package / "postinst"), "configure"]
    upgraded = subprocess.run([*script, "0.9"], env=environment, capture_output=True, text=True)
    assert upgraded.returncode == 0
    assert (
        f"slackwater-{package} is installed, and did not start again: see journalctl -u slackwater-" in upgraded.stderr
    )
    assert asked.read_text().split() == ["daemon-reload", "try-restart"]
    subprocess.run([*script, ""], env=environment, check=True)
    assert asked.read_text().split()[2:] == ["daemon-reload"], "a first installation starts nothing"


@pytest.mark.parametrize("edited", ["", "before it is written again", "after it"])
def test_a_purge_removes_what_our_commands_wrote_and_nobody_edited(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "etc/slackwater"
    monkeypatch.setattr(written_files, "FOLDER", folder)
    settings = folder / "controller.toml"
    write_settings(settings, "one\n")
    if edited == "before it is written again":
        settings.write_text("by hand\n")
    write_settings(settings, "two\n")
    write(folder / "bus-authority.key", "a key", 0o600)
    if edited == "after it":
        settings.write_text("by hand\n")
    (tmp_path / "systemctl").symlink_to("/bin/true")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DPKG_ROOT": str(tmp_path)}
    script = ["sh", str(ROOT / "packaging/controller/postrm")]
    subprocess.run([*script, "remove"], env=environment, check=True)
    assert settings.exists()
    purge = subprocess.run([*script, "purge"], env=environment, check=True, capture_output=True, text=True)
    assert (f"{settings} was edited, and is left" in purge.stdout) == (edited == "after it")
    assert list(tmp_path.glob("etc/slackwater/*")) == ([settings] if edited else [])
    assert folder.exists() == bool(edited)


def test_completions_know_subcommands_and_their_options(node: Path, tmp_path: Path) -> None:
    root = unpacked(node, tmp_path / "root")

    def completed(*words: str) -> list[str]:
        script = (
            f"source {root}/usr/share/bash-completion/completions/slackwater-monitor;"
            f" COMP_WORDS=({' '.join(words)} '');"
            f' COMP_CWORD={len(words)}; _slackwater_monitor; echo "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert {"run", "check", "once"} <= set(completed("slackwater-monitor"))
    assert "--config" in completed("slackwater-monitor", "run")


def test_the_manual_has_each_command(node: Path, tmp_path: Path) -> None:
    root = unpacked(node, tmp_path / "root")
    page = subprocess.run(
        ["gzip", "-dc", str(root / "usr/share/man/man1/slackwater-wsengine.1.gz")], capture_output=True, text=True
    ).stdout
    assert page.startswith(".TH SLACKWATER-WSENGINE 1")
    for command in ("run", "status", "restore", "check", "try", "config"):
        assert f".SS slackwater\\-wsengine {command}" in page


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_controller_s_package_is_a_virtual_environment_and_has_the_same_bytes_twice(tmp_path: Path) -> None:
    first = build(tmp_path / "a", "slackwater-controller")
    second = build(tmp_path / "b", "slackwater-controller", TZ="Asia/Tokyo")
    assert first.read_bytes() == second.read_bytes()
    root = unpacked(first, tmp_path / "root")
    home = root / "opt/slackwater"
    assert (home / "bin/python").readlink() == Path("/usr/bin/python3.11")
    site = home / "lib/python3.11/site-packages"
    assert (site / "slackwater/controller/cli/__pycache__/main.cpython-311.pyc").exists()
    assert (site / "slackwater/detector/models/start.skops").exists()
    assert (site / "slackwater/web/templates").is_dir()
    for shell in ("bash-completion/completions/slackwater", "zsh/vendor-completions/_slackwater"):
        assert "_SLACKWATER_COMPLETE" in (root / "usr/share" / shell).read_text()
    assert (root / "usr/share/man/man1/slackwater.1.gz").exists()
    assert str(ROOT) not in (root / "usr/bin/slackwater").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_programs_that_another_checkout_builds_anew_are_the_same(node: Path, tmp_path: Path) -> None:
    programs = sorted((unpacked(node, tmp_path / "root") / "usr/bin").iterdir())
    assert len(programs) == 3
    with tempfile.TemporaryDirectory() as folder:
        checkout = copy_of_checkout(Path(folder))
        (checkout / ".build").symlink_to(ROOT / ".build")
        subprocess.run(["cargo", "build", "--quiet", "--release", "--locked", "--workspace"], cwd=checkout, check=True)
        for program in programs:
            again = tmp_path / program.name
            built = checkout / "target/release" / program.name
            packaging_module("build").release(built, again, own_architecture())
            assert again.read_bytes() == program.read_bytes(), program.name

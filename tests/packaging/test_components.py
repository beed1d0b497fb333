"""What the packages carry of others: all of it, with the texts of its licences, and as an SBOM."""

from __future__ import annotations

import gzip
import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.built_packages import build, packaging_module, unpacked
from tests.support.paths import ROOT
from tools import lock

components = packaging_module("components")
sbom = packaging_module("sbom")


def check_sbom(text: str, name: str) -> dict[str, dict[str, object]]:
    """Whether it follows its schema and each part's dependencies are there; the parts by name."""
    assert sbom.fault(text) is None
    assert sbom.fault(text.replace('"bomFormat"', '"form"')) is not None
    document = json.loads(text)
    assert document["metadata"]["component"]["name"] == name
    parts = {part["bom-ref"]: part for part in document["components"]}
    for dependency in document["dependencies"]:
        assert set(dependency.get("dependsOn", [])) <= parts.keys()
    return {part["name"]: part for part in parts.values()}


def read_gz(file: Path) -> str:
    return gzip.decompress(file.read_bytes()).decode()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("node"), "slackwater-node")


def test_the_node_s_package_names_every_crate_that_is_in_its_programs(node: Path, tmp_path: Path) -> None:
    tree = ["cargo", "tree", "--locked", "--edges=normal", "--prefix=none", "--package=slackwater-monitor"]
    listed = subprocess.run(tree, cwd=ROOT, capture_output=True, text=True, check=True)
    crates = {tuple(line.split()[:2]) for line in listed.stdout.splitlines() if line and "(/" not in line}
    assert len(crates) > 50
    root = unpacked(node, tmp_path / "root")
    notices = read_gz(root / "usr/share/doc/slackwater-node/third-party-notices.txt.gz")
    parts = check_sbom(node.with_suffix(".cdx.json").read_text(), "slackwater-node")
    sums = {
        package["name"]: package.get("checksum")
        for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    }
    for name, version in sorted(crates):
        number = version.removeprefix("v")
        assert f"\n{name} {number}: " in notices
        assert name in parts
    assert parts["serde"]["hashes"] == [{"alg": "SHA-256", "content": sums["serde"]}]
    assert "Permission is hereby granted, free of charge" in notices
    assert "rust-std" in parts


def test_the_controller_s_parts_are_the_locked_packages() -> None:
    places = (ROOT / ".build").glob("controller-bookworm-amd64-*/opt/slackwater/lib/python3.11/site-packages")
    site = next(iter(sorted(places)), None)
    if site is None:
        pytest.skip("needs the controller's packages: make deb")
    parts = components.python(site, ROOT / "requirements.txt", ROOT / ".build/wheels/controller-bookworm-amd64")
    locked = {requirement.name: hashes for requirement, hashes in lock.locked((ROOT / "requirements.txt").read_text())}
    assert {part.name for part in parts} == set(locked)
    for part in parts:
        assert [f"sha256:{digest}" in locked[part.name] for digest in part.sha256] == [True], part.name
        assert all(text.strip() for text in part.texts), part.name
    text = sbom.document("slackwater-controller", "1-1", "amd64", parts, 1_700_000_000)
    assert text == sbom.document("slackwater-controller", "1-1", "amd64", parts[::-1], 1_700_000_000)
    assert set(check_sbom(text, "slackwater-controller")) == set(locked)
    notices = components.notices("title", parts)
    assert "OpenBLAS" in notices, "what numpy carries of others"
    assert all(f"\n{part.name} {part.version}: " in notices for part in parts)


def test_a_licence_without_its_text_has_the_common_one_or_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "LICENSE"
    file.write_text("Copyright (c) A\n")
    assert components.texts_of([file], "MIT", ["A"], "a") == ("Copyright (c) A\n",)
    (common,) = components.texts_of([], "MIT OR Apache-2.0", ["A"], "a")
    assert common.startswith("Copyright: A\n\nPermission is hereby granted")
    with pytest.raises(components.ComponentError, match="a: it comes without the text of its licence"):
        components.texts_of([], "Unicode-3.0", ["A"], "a")


def test_a_text_that_several_have_stands_in_the_notices_once() -> None:
    made = [components.Component(name, "1", "cargo", "MIT", texts=("the text\n",)) for name in ("a", "b")]
    notices = components.notices("title", made)
    assert notices.count("the text") == 1
    assert "a 1: MIT; texts [1]" in notices
    assert "b 1: MIT; texts [1]" in notices

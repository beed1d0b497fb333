"""The Ansible module's edit of a haproxy.cfg with conditions, and with `stats socket` in all its forms, as a real
HAProxy reads them, whichever branch holds."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.ansible_files import module
from tests.support.asked_haproxy import configured_weights, started
from tests.support.edited_haproxy import LINE, PROXIES, edit, written
from tests.support.real_haproxy import haproxy_program, needs_haproxy

pytest.importorskip("ansible")
SERVERS = " server a 192.0.2.1:80\n server b 192.0.2.2:80\n"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of few letters: HAProxy takes 97 for a socket's path, and pytest's own folder needs most of them."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        yield Path(folder)


@needs_haproxy
@pytest.mark.parametrize(
    "more",
    [
        ".if defined(X)\n timeout check 1s\n.else\n timeout check 2s\n.endif\n",
        "frontend other\n bind 127.0.0.1:19993\n.if defined(X)\n mode tcp\n.endif\n",
        ".if defined(X)\ndefaults\n mode http\n timeout connect 1s\n timeout client 1s\n timeout server 1s\n.endif\n",
        ".if defined(X)\n default-server inter 1s\n.endif\n",
    ],
)
def test_a_condition_that_names_no_weight_leaves_weights_known(tmp_path: Path, more: str) -> None:
    file = written(tmp_path, SERVERS, more)
    before = file.read_text()
    answer = edit(tmp_path)
    assert (answer.get("changed"), answer.get("left")) == (True, []), answer
    assert file.read_text() == before.replace("\nbackend web\n", f"\nbackend web\n{LINE}")


@needs_haproxy
@pytest.mark.parametrize(
    ("more", "servers"),
    [
        (".if defined(X)\n default-server weight 5\n.endif\n", SERVERS),
        ("", f".if defined(X)\n default-server weight 5\n.else\n mode http\n.endif\n{SERVERS}"),
        (f".if defined(X)\n{PROXIES} default-server weight 5\n.endif\n", SERVERS),
    ],
)
def test_a_weight_that_a_branch_gives_makes_weights_unknown(tmp_path: Path, more: str, servers: str) -> None:
    before = written(tmp_path, servers, more).read_text()
    answer = edit(tmp_path)
    assert answer["left"][0].startswith("backend `web` is left as it is: only HAProxy knows the weights of a, b, which")
    assert (tmp_path / "haproxy.cfg").read_text() == before


@needs_haproxy
def test_a_backend_that_stands_in_one_branch_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, "")
    branches = f".if defined(X)\nbackend web\n.else\nbackend web2\n.endif\n{SERVERS}"
    file.write_text(file.read_text().replace("_backend web", "_backend web2").rpartition("backend web\n")[0] + branches)
    before = file.read_text()
    answer = edit(tmp_path, backends=["web", "web2"])
    assert [note.partition(", which")[0] for note in answer["left"]] == [
        f"backend `{name}` is left as it is: only HAProxy knows the weights of a, b" for name in ("web", "web2")
    ]
    assert file.read_text() == before


@needs_haproxy
def test_a_server_that_may_belong_to_the_backend_before_a_condition_counts_in_it(tmp_path: Path) -> None:
    servers = " server a 192.0.2.1:80\n.if defined(X)\nbackend other\n.endif\n server b 192.0.2.2:80 weight 5\n"
    written(tmp_path, servers)
    assert "they are a 16.7%, b 83.3%" in edit(tmp_path)["left"][0]


@needs_haproxy
def test_a_backend_without_servers_is_named(tmp_path: Path) -> None:
    written(tmp_path, "")
    assert edit(tmp_path)["left"] == ["backend `web` is left as it is: the file has no servers in it"]


@needs_haproxy
@pytest.mark.parametrize("program", ["haproxy-2.2", "haproxy", "haproxy-3.2"])
@pytest.mark.parametrize(
    ("form", "since_2_2"),
    [
        ("{0}/other.sock,{0}/admin.sock level admin", True),
        ("unix@{0}/admin.sock,ipv4@127.0.0.1:19994 level admin", True),
        ("{0}/admin.sock level user level admin", True),
        ("{0}//admin.sock level admin", True),
        ("uxst@{0}/admin.sock mode 600 level admin", False),
        ("stream+unix@{0}/admin.sock level admin", False),
    ],
)
def test_a_socket_that_is_there_is_seen_in_any_form(tmp_path: Path, program: str, form: str, since_2_2: bool) -> None:
    command = haproxy_program(program)
    if command is None or (program == "haproxy-2.2" and not since_2_2):
        pytest.skip("a HAProxy without this form")
    file = written(tmp_path, SERVERS)
    file.write_text(file.read_text().replace(f"{tmp_path}/admin.sock mode 600 level admin", form.format(tmp_path)))
    subprocess.run([command, "-c", "-f", file], check=True, capture_output=True)
    answer = edit(tmp_path, backends=[], command=str(command))
    assert (answer.get("changed"), answer.get("reasons")) == (False, []), answer


@needs_haproxy
def test_a_socket_in_haproxy_s_working_directory_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, SERVERS)
    file.write_text(file.read_text().replace(f"{tmp_path}/admin.sock", "unix@admin.sock"))
    with started([file], tmp_path / "admin.sock"):
        answer = edit(tmp_path, backends=[])
    assert (answer.get("changed"), answer.get("reasons")) == (False, []), answer


def test_many_backends_need_no_more_readings_of_the_file_than_two() -> None:
    haproxy = module("haproxy")
    readings = []

    class Counted(haproxy.Site):  # type: ignore[misc, name-defined]
        def rows(self, lines: list[str]) -> list[list[str]]:
            readings.append(len(lines))
            return super().rows(lines)  # type: ignore[no-any-return]

    def readings_for(count: int) -> tuple[int, int, list[str]]:
        names = [f"web{number}" for number in range(count)]
        lines = ["global\n", *(line for name in names for line in (f"backend {name}\n", " server a 192.0.2.1:80\n"))]
        given = {"socket": "/a", "group": "g", "user": "u", "listen": "", "allow": [], "weight": 100, "backends": names}
        counts = []
        for _ in range(2):
            readings.clear()
            lines, _, _ = haproxy.wanted(lines, given, Counted())
            counts.append(len(readings))
        return counts[0], counts[1], lines

    *few, _ = readings_for(2)
    *many, lines = readings_for(30)
    assert many == few
    assert lines.count(LINE) == 30


WEIGHT = st.one_of(st.none(), st.none(), st.integers(0, 256))


@st.composite
def configurations(draw: st.DrawFn) -> str:
    """Sections of proxies with conditions between any two lines."""
    lines = ["backend b0\n"]
    depth = 0
    for number in range(1, draw(st.integers(5, 14))):
        kinds = ["server", "server", "server", "default-server", "backend", "backend", "defaults", ".if"]
        kind = draw(st.sampled_from([*kinds, *([".elif", ".else", ".endif", ".endif"] if depth else [])]))
        options = "" if (weight := draw(WEIGHT)) is None else f" weight {weight}"
        if kind in (".if", ".elif"):
            lines.append(f"{kind} defined({draw(st.sampled_from('XY'))})\n")
        elif kind in (".else", ".endif"):
            lines.append(f"{kind}\n")
        elif kind == "backend":
            lines.append(f"backend b{draw(st.sampled_from([number, 0])) if depth else number}\n")
        elif kind == "defaults":
            usual = draw(st.sampled_from(["", f" default-server inter 3s{options}\n"]))
            lines += [PROXIES, usual, draw(st.sampled_from([f"backend b{number}\n", f"backend b{number}\n", ""]))]
        elif kind == "server":
            lines.append(f" server s{draw(st.sampled_from([number, number, 1]))} 192.0.2.1:80{options}\n")
        else:
            lines.append(f" default-server inter 3s{options}\n")
        depth += {".if": 1, ".endif": -1}.get(kind, 0)
    return "".join([*lines, *[".endif\n"] * depth])


def shares(by_backend: dict[str, dict[str, int]]) -> dict[str, dict[str, Fraction]]:
    return {
        backend: {name: Fraction(weight, sum(weights.values()) or 1) for name, weight in weights.items()}
        for backend, weights in by_backend.items()
    }


def as_haproxy_reads(text: str, variables: Sequence[str], folder: Path) -> dict[str, dict[str, int]] | None:
    """Backend -> server -> weight, with these variables set; None where HAProxy refuses the file."""
    file = folder / "haproxy.cfg"
    file.write_text(text)
    environ = {**os.environ, **dict.fromkeys(variables, "1")}
    if subprocess.run([str(haproxy_program("haproxy")), "-c", "-f", file], env=environ, capture_output=True).returncode:
        return None
    with started([file], folder / "admin.sock", environ=environ):
        return configured_weights(folder / "admin.sock")


@needs_haproxy
@settings(max_examples=25, deadline=None)
@given(configurations())
def test_whichever_branch_holds_no_share_changes(text: str) -> None:
    haproxy = module("haproxy")
    with tempfile.TemporaryDirectory(prefix="sw-") as name:
        folder = Path(name)
        socket = f"global\n stats socket {folder}/admin.sock level admin\n"
        head = f"{socket}{PROXIES}frontend in\n bind unix@{folder}/in.sock\n"
        lines = haproxy.lines_of(head + text)
        believed = haproxy.Site().weights(lines)
        given = {"socket": f"{folder}/admin.sock", "group": "root", "user": "root", "listen": "", "allow": []}
        edited, _, _ = haproxy.wanted(lines, given | {"weight": 100, "backends": list(believed)})
        taken = 0
        for variables in ("", "X", "Y", "XY"):
            before = as_haproxy_reads(head + text, variables, folder)
            if before is None:
                continue
            taken += 1
            for backend, servers in before.items():
                for server, weight in servers.items():
                    assert believed[backend][server].value in (None, weight)
            after = as_haproxy_reads("".join(edited), variables, folder)
            assert after is not None
            assert shares(after) == shares(before)
        assume(taken)

"""The Ansible module's edit of haproxy.cfg: no server's share changes by it, as a real HAProxy sees the file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ansible_files import module
from tests.support.asked_haproxy import asked, configured_weights, started
from tests.support.edited_haproxy import LINE, PROXIES, edit, written
from tests.support.placed_case import placed_case
from tests.support.real_haproxy import needs_haproxy

pytest.importorskip("ansible")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of few letters: HAProxy takes 97 for a socket's path, and pytest's own folder needs most of them."""
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        yield Path(folder)


@needs_haproxy
def test_a_backend_in_which_some_servers_have_weights_is_left_as_it_is(tmp_path: Path) -> None:
    case = placed_case("some-servers-weighted", tmp_path)
    before = (case / "haproxy.cfg").read_bytes()
    answer = edit(case)
    assert (answer["changed"], (case / "haproxy.cfg").read_bytes()) == (False, before)
    assert answer["left"] == [
        "backend `web` is left as it is: with `default-server weight 100` the shares of its servers would become big"
        " 1.48%, small 49.3%, small2 49.3%, they are big 60%, small 20%, small2 20%; weights in the same proportion,"
        " with room below them: big 255, small 85, small2 85"
    ]
    assert "backend `web` is left as it is" in json.dumps(answer["warnings"])


@needs_haproxy
def test_bytes_of_another_encoding_stay_as_they_are(tmp_path: Path) -> None:
    case = placed_case("latin1-comment", tmp_path)
    before = (case / "haproxy.cfg").read_bytes()
    answer = edit(case)
    assert answer["changed"], answer
    assert (case / "haproxy.cfg").read_bytes() == before.replace(b"backend web\n", b"backend web\n" + LINE.encode())
    edit(case, state="absent")
    assert (case / "haproxy.cfg").read_bytes() == before


@needs_haproxy
def test_the_result_is_checked_with_the_files_that_haproxy_was_started_with(tmp_path: Path) -> None:
    case = placed_case("several-config-files", tmp_path)
    alone = edit(case)
    assert alone["failed"]
    assert "refuses the file as it is already (checked alone: no HAProxy runs that reads it)" in alone["msg"]
    assert re.search(
        r"haproxy\.cfg:11\] : 'use_backend' .*'api'|unable to find required use_backend: 'api'", alone["msg"]
    )
    with started([case / "haproxy.cfg", case / "second.cfg"], case / "admin.sock"):
        answer = edit(case)
        assert answer["changed"], answer
        (case / "second.cfg").write_text("backend api\n nonsense\n")
        (case / "haproxy.cfg").write_text((case / "haproxy.cfg").read_text().replace(LINE, ""))
        refused = edit(case)
    assert f"refuses the file as it is already beside {case}/second.cfg, nothing was changed" in refused["msg"]
    assert "unknown keyword 'nonsense' in 'backend' section" in refused["msg"]


@needs_haproxy
def test_folders_of_files_and_variables_are_those_that_haproxy_runs_with(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    file = written(parts, ' server a 192.0.2.1:80 weight "$BIG"\n server b 192.0.2.2:80\n')
    (parts / "zzz.cfg").write_text("backend later\n server c 192.0.2.3:80\n")
    (parts / "ignored.txt").write_text("nonsense\n")
    environ = {**os.environ, "BIG": "4"}
    assert edit(parts)["left"][0].startswith("backend `web` is left as it is: only HAProxy knows the weights of a,")
    with started([parts], parts / "admin.sock", environ=environ):
        left = edit(parts)["left"]
        assert "they are a 80%, b 20%; weights in the same proportion, with room below them: a 256, b 64" in left[0]
        later = edit(parts, path=str(parts / "zzz.cfg"), backends=["later"])
        assert later["changed"], later
        assert "another file that HAProxy reads has it" in edit(parts, backends=["later"])["msg"]
    assert file.read_text().count("default-server") == 0


@needs_haproxy
def test_servers_that_were_added_at_runtime_keep_their_share(tmp_path: Path) -> None:
    file = written(tmp_path, " server a 192.0.2.1:80\n server b 192.0.2.2:80\n")
    with started([file], tmp_path / "admin.sock"):
        assert "New server registered" in asked(tmp_path / "admin.sock", "add server web/new 192.0.2.3:80")
        answer = edit(tmp_path)
        assert not answer["changed"]
        assert answer["left"] == [
            "backend `web` is left as it is: HAProxy has new, which the file has not; a server that is added at runtime"
            " has weight 1 beside the 100 of the others, unless `add server` says its weight"
        ]


@needs_haproxy
def test_weights_that_were_set_at_runtime_and_that_a_reload_loses_are_named(tmp_path: Path) -> None:
    file = written(tmp_path, " server a 192.0.2.1:80\n server b 192.0.2.2:80\n")
    with started([file], tmp_path / "admin.sock"):
        asked(tmp_path / "admin.sock", "set server web/a weight 0")
        answer = edit(tmp_path)
        assert answer["changed"]
        assert answer["left"] == [
            "HAProxy must reload for this, and then forgets the weights that were set at runtime in backend `web`: a 0,"
            " not 1"
        ]
        assert edit(tmp_path)["left"] == []


@needs_haproxy
def test_a_weight_that_the_site_has_added_since_keeps_our_line_with_it(tmp_path: Path) -> None:
    file = written(tmp_path, " server a 192.0.2.1:80\n server b 192.0.2.2:80\n")
    bare = file.read_text()
    assert edit(tmp_path)["changed"]
    file.write_text(file.read_text() + " server c 192.0.2.3:80 weight 50\n")
    edited = file.read_text()
    assert (edit(tmp_path)["changed"], file.read_text()) == (False, edited)
    answer = edit(tmp_path, state="absent")
    assert file.read_text() == edited.replace("  # added by Slackwater", "")
    assert "`default-server weight 100` stays, as a line of the site's own" in json.dumps(answer["warnings"])
    file.write_text(bare)
    edit(tmp_path)
    edit(tmp_path, state="absent")
    assert file.read_text() == bare


MIXTURES = [
    " server a 192.0.2.1:80\n server b 192.0.2.2:80 weight 3\n",
    " server a 192.0.2.1:80\n server b 192.0.2.2:80 backup weight 50\n",
    " server a 192.0.2.1:80\n server b 192.0.2.2:80 weight 0\n server c 192.0.2.2:80 weight 1\n",
    " server a 192.0.2.1:80\n default-server weight 7\n server b 192.0.2.2:80\n",
    " server-template t 1-3 192.0.2.1:80\n server b 192.0.2.2:80 weight 20\n",
    ' server a 192.0.2.1:80\n server b 192.0.2.2:80 weight "${UNSET-8}"\n',
    " .if defined(X)\n server a 192.0.2.1:80 weight 5\n .endif\n server b 192.0.2.2:80\n",
    ' server a 192.0.2.1:80 weight "${HAPROXY_BRANCH-0}"\n server b 192.0.2.2:80\n',
    ' server "a$NAME" 192.0.2.1:80\n server b 192.0.2.2:80 weight 0\n',
]


@needs_haproxy
def test_no_backend_with_a_mixture_of_weights_is_edited(tmp_path: Path) -> None:
    names = [f"web{n}" for n in range(len(MIXTURES))]
    sections = [f"backend {name}\n{servers}" for name, servers in zip(names, MIXTURES, strict=True)]
    file = written(tmp_path, " server a 192.0.2.1:80\n" + "".join(sections))
    before = file.read_text()
    answer = edit(tmp_path, backends=names)
    assert not answer.get("failed"), answer
    assert file.read_text() == before
    assert all(any(f"backend `{name}` is left" in left for left in answer["left"]) for name in names), answer


@needs_haproxy
@pytest.mark.parametrize(
    ("servers", "more"),
    [
        (" server a 192.0.2.1:80\n server b 192.0.2.2:80 weight 5\n", "defaults fast\n default-server weight 9\n"),
        (
            ' server a 192.0.2.1:80 weight "${W-0}"\n server b 192.0.2.2:80\n server c 192.0.2.2:80\n',
            "global\n .if defined(NOPE)\n setenv W 0\n .endif\n presetenv W 4\n",
        ),
    ],
)
def test_weights_of_defaults_and_of_variables_count_too(tmp_path: Path, servers: str, more: str) -> None:
    file = written(tmp_path, servers, more)
    before = file.read_text()
    answer = edit(tmp_path)
    assert not answer.get("failed"), answer
    assert file.read_text() == before


@needs_haproxy
def test_two_haproxys_that_read_one_file_otherwise_both_keep_their_shares(tmp_path: Path) -> None:
    servers = ' server a 192.0.2.1:80 weight "${W}"\n server b 192.0.2.2:80\n server c 192.0.2.3:80\n'
    file = written(tmp_path, servers)
    file.write_text(file.read_text().replace(f"{tmp_path}/admin.sock", '"$ADMIN"').replace("in.sock", "$W.sock"))
    file.write_text(file.read_text().replace(f"unix@{tmp_path}/$W.sock", f'"unix@{tmp_path}/$W.sock"'))
    before = file.read_text()
    with contextlib.ExitStack() as both:
        for weight, socket in (("0", tmp_path / "admin.sock"), ("4", tmp_path / "other.sock")):
            environ = {**os.environ, "W": weight, "ADMIN": str(socket)}
            both.enter_context(started([file], socket, environ=environ))
        answer = edit(tmp_path)
    assert "the edit would change the shares of backend `web` from a 66.7%, b 16.7%, c 16.7% to" in answer["msg"]
    assert file.read_text() == before


@needs_haproxy
def test_a_backend_whose_weights_only_haproxy_knows_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, "")
    text = file.read_text().rpartition("backend web\n")[0]
    for weight, is_named in (("", True), (" weight 50", False)):
        servers = "".join(f" server {name} 192.0.2.1:80{weight}\n" for name in "ab")
        file.write_text(f"{text}.if defined(X)\nbackend web\n{servers}.else\nbackend web\n{servers}.endif\n")
        with started([file], tmp_path / "admin.sock"):
            answer = edit(tmp_path)
        assert not answer["changed"]
        assert [note.partition(", which")[0] for note in answer["left"]] == (
            ["backend `web` is left as it is: only HAProxy knows the weights of a, b"] if is_named else []
        )


@needs_haproxy
def test_a_weight_beyond_haproxy_s_bounds_is_refused(tmp_path: Path) -> None:
    written(tmp_path, " server a 192.0.2.1:80\n")
    assert "weight 300: expected 1..256, as HAProxy takes them" in edit(tmp_path, weight=300)["msg"]


WEIGHT = st.one_of(st.none(), st.none(), st.integers(0, 256))


@st.composite
def configurations(draw: st.DrawFn) -> str:
    """Sections of proxies: `defaults` with and without names and weights, and backends that use them."""
    text = ""
    named: list[str] = []
    for number in range(draw(st.integers(1, 3))):
        origin = draw(st.sampled_from(["", *(f" from {section}" for section in named)]))
        text += f"defaults d{number}{origin}\n{PROXIES.partition(chr(10))[2]}"
        named.append(f"d{number}")
        if (weight := draw(WEIGHT)) is not None:
            text += f" default-server weight {weight}\n"
        for section in range(draw(st.integers(1, 2))):
            origin = draw(st.sampled_from(["", *(f" from {section_name}" for section_name in named)]))
            text += f"backend b{number}{section}{origin}\n"
            for server in range(draw(st.integers(0, 4))):
                kind = draw(st.sampled_from(["server", "server", "template", "default"]))
                options = "" if (weight := draw(WEIGHT)) is None else f" weight {weight}"
                options += draw(st.sampled_from(["", "", " backup", " check", " # weight 9", ' cookie "weight 3"']))
                if kind == "default":
                    text += f" default-server inter 3s{'' if weight is None else f' weight {weight}'}\n"
                elif kind == "template":
                    text += f" server-template t{server}x 1-2 192.0.2.1:80{options}\n"
                else:
                    text += f" server s{server} 192.0.2.1:80{options}\n"
    return text


def shares(weights: dict[str, int]) -> dict[str, Fraction]:
    total = sum(weights.values())
    return {name: Fraction(weight, total) if total else Fraction(0) for name, weight in weights.items()}


@needs_haproxy
@settings(max_examples=15, deadline=None)
@given(configurations())
def test_the_shares_of_any_configuration_are_the_same_before_and_after(text: str) -> None:
    haproxy = module("haproxy")
    with tempfile.TemporaryDirectory(prefix="sw-") as name:
        folder = Path(name)
        admin, file = folder / "admin.sock", folder / "haproxy.cfg"
        head = f"global\n stats socket {admin} level admin\n{PROXIES}frontend in\n bind unix@{folder}/in.sock\n"
        file.write_text(head + text)
        with started([file], admin):
            before = configured_weights(admin)
        lines = haproxy.lines_of(head + text)
        believed = haproxy.Site().weights(lines)
        for backend, servers in believed.items():
            expected = {
                name: weight.value
                for template, weight in servers.items()
                for name in haproxy.each_server({template: weight})
            }
            assert expected == before.get(backend, {})
        given = {"socket": str(admin), "group": "root", "user": "root", "listen": "", "allow": [], "weight": 100}
        edited, _, _ = haproxy.wanted(lines, given | {"backends": list(believed)})
        file.write_text("".join(edited))
        with started([file], admin):
            after = configured_weights(admin)
        assert {backend: shares(weights) for backend, weights in after.items()} == {
            backend: shares(weights) for backend, weights in before.items()
        }
        assert "".join(haproxy.taken_away(edited, haproxy.Site())[0]) == head + text

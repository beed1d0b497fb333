"""Which `stats socket` of a site's haproxy.cfg is the admin socket, and what is said where none can be used."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slackwater.lbengine.backends.haproxy.site import SiteConfiguration, SurveyError, read_configuration
from slackwater.lbengine.backends.haproxy.survey import find_socket
from tests.support.real_haproxy import haproxy_program, needs_haproxy, until


def why_not(folder: Path, *addresses: str) -> str:
    file = folder / "haproxy.cfg"
    file.write_text("global\n" + "".join(f" stats socket {address} level admin\n" for address in addresses))
    with pytest.raises(SurveyError) as error:
        find_socket("", read_configuration(file), usual=["/nowhere/admin.sock"])
    return str(error.value).replace(f"{file}:", "")


@pytest.mark.parametrize(
    ("address", "to_write"),
    [
        ("ipv6@::1:19991", "[::1]"),
        ("[::1]:19991", "[::1]"),
        ("tcp6@2001:db8::5:19991", "[2001:db8::5]"),
        (":::19991", "127.0.0.1"),
        ("ipv4@192.0.2.1:19991", "192.0.2.1"),
        ("lb1:19991", "lb1"),
    ],
)
def test_the_address_that_is_named_for_a_tcp_socket_is_one_that_the_settings_take(
    tmp_path: Path, address: str, to_write: str
) -> None:
    assert f'with `socket = "tcp://{to_write}:19991"` and `allow_tcp_socket = true`' in why_not(tmp_path, address)


def test_a_socket_that_has_no_path_is_named(tmp_path: Path) -> None:
    assert why_not(tmp_path, "abns@admin", "127.0.0.1:19991-19992").startswith(
        "no admin socket of HAProxy was found (2: `stats socket abns@admin` has no path, so it cannot be used; 3:"
        " `stats socket 127.0.0.1:19991-19992` has no path, so it cannot be used); add the line `stats socket"
    )
    assert why_not(tmp_path).startswith("no admin socket of HAProxy was found; add the line")


@needs_haproxy
def test_it_is_where_haproxy_has_it(tmp_path: Path) -> None:
    """Each form of an address that HAProxy takes; a prefix for `bind` does not hold for it."""
    folder = tmp_path / "h"
    (folder / "conf.d/old.cfg").mkdir(parents=True)
    (folder / "p").mkdir()
    file = folder / "conf.d/a.cfg"
    addresses = (f"uxst@{folder}/a", f"{folder}/b,{folder}/c", "unix@d", f"stream+uxst@{folder}/e")
    lines = "".join(f" stats socket {address} level admin\n" for address in addresses)
    file.write_text(
        f"global\n unix-bind prefix {folder}/p\n{lines}listen x\n mode http\n bind unix@x\n timeout client 1s\n"
    )
    command = [str(haproxy_program()), "-db", "-f", str(folder / "conf.d")]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as running:
        try:
            sockets = [folder / name for name in "abcde"]
            until(lambda: all(path.is_socket() for path in sockets), "HAProxy's sockets")
            found = read_configuration(folder / "conf.d").sockets
        finally:
            running.terminate()
    assert [line.path for line in found] == [str(path) for path in sockets]


def test_a_level_is_what_follows_the_word_level(tmp_path: Path) -> None:
    (tmp_path / "h.cfg").write_text("global\n stats socket /a level admin group level\n stats socket /b user level\n")
    assert [line.level for line in read_configuration(tmp_path / "h.cfg").sockets] == ["admin", "operator"]


def test_a_named_socket_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_socket("admin.sock", SiteConfiguration())[0] == f"{tmp_path}/admin.sock"

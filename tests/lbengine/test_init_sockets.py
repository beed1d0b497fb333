"""Which `stats socket` of a site's haproxy.cfg is the admin socket, and what is said where none can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.lbengine.backends.haproxy.site import SurveyError, read_configuration
from slackwater.lbengine.backends.haproxy.survey import find_socket


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

"""What differs between two settings, and whom it concerns."""

from __future__ import annotations

import re

import pytest

from slackwater.controller.supervise.differences import CONCERNS, PARTS, Difference, compare, given_back
from slackwater.core import config
from slackwater.core.config import ControllerSettings, parse
from tests.support.paths import ROOT

WEB = '[[pool]]\nname = "web"\nbackend = "be"\nsocket = "/run/a.sock"\n'
SHOP = '[[pool]]\nname = "shop"\nbackend = "shop"\nsocket = "/run/a.sock"\n'
NEED_A_RESTART = {
    "state_dir",
    *(f"bus.{name}" for name in ("url", "listen", "tls_cert", "tls_key", "user", "password_file", "tls_ca")),
}


def settings(text: str) -> ControllerSettings:
    return parse(text, "f.toml")


def differences(before: str, after: str) -> dict[str, Difference]:
    return {difference.setting: difference for difference in compare(settings(before), settings(after))}


def test_the_same_settings_do_not_differ_in_another_order_or_form() -> None:
    assert differences(WEB + SHOP, "# a comment\n" + SHOP + WEB + 'mode = "observe"\n') == {}


def test_each_difference_has_both_values_and_who_needs_it() -> None:
    by_setting = differences(WEB, WEB + 'mode = "act"\ntarget_p95_ms = 5.0\n[journal]\nkeep_samples_h = 2.0\n')
    assert [str(difference) for difference in by_setting.values()] == [
        'pool.web.mode: "observe" -> "act"',
        "pool.web.target_p95_ms: 0.0 -> 5.0",
        "journal.keep_samples_h: 24.0 -> 2.0",
    ]
    assert by_setting["pool.web.mode"].parts == {
        "lbengine",
        "balancer_view",
        "retune",
        "governor",
        "replace",
        "web",
        "otlp",
    }
    assert by_setting["pool.web.target_p95_ms"].parts == {"governor", "web", "otlp"}
    assert by_setting["journal.keep_samples_h"].parts == {"journal", "web"}


def test_pools_that_come_and_go_concern_all() -> None:
    assert str(differences(WEB, WEB + SHOP)["pool.shop"]) == (
        "pool.shop is new: observe, law optimal, backend `shop` behind /run/a.sock"
    )
    gone = differences(WEB + SHOP, WEB)["pool.shop"]
    assert str(gone) == "pool.shop is gone"
    assert gone.parts == set(PARTS)


def test_a_pool_that_is_driven_otherwise_gets_its_weights_back_first() -> None:
    both = settings(WEB + SHOP)
    for text in (WEB, WEB + SHOP.replace("/run/a.sock", "/run/b.sock"), WEB + SHOP + 'weight_delivery = "agent-check"'):
        assert [pool.name for pool in given_back(both, settings(text))] == ["shop"]
    lvs = '[[pool]]\nname = "shop"\nbalancer = "lvs"\nservice = "-t 10.0.0.1:80"\n'
    assert [pool.name for pool in given_back(both, settings(WEB + lvs))] == ["shop"]
    reads_pools = {"lbengine", "balancer_view", "retune", "governor", "replace", "web", "otlp"}
    assert differences(WEB + SHOP, WEB + lvs)["pool.shop.balancer"].parts == reads_pools
    assert given_back(both, settings(WEB + SHOP + 'mode = "act"\nlaw = "ice"\n')) == []


def test_passwords_are_not_shown() -> None:
    bus = '[bus]\nurl = "tls://{}@h:1"\n'
    (difference,) = compare(settings(bus.format("a:old") + WEB), settings(bus.format("a:new") + WEB))
    assert (difference.setting, difference.parts) == ("bus.url", frozenset())
    assert "old" not in str(difference)
    assert "new" not in str(difference)


def test_the_page_says_of_each_setting_what_is_started_anew() -> None:
    page = (ROOT / "docs/operations/README.md").read_text(encoding="utf-8")
    table = page.partition("| started anew besides `web` |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in line.split(" | ")] for line in table.splitlines()]
    said = {setting: frozenset({*parts, "web"}) for settings_of_row, parts in rows for setting in settings_of_row}
    assert said == CONCERNS


@pytest.mark.parametrize("setting", [name for name, _, _ in config.describe()])
def test_it_is_known_of_each_setting_whether_a_reload_applies_it(setting: str) -> None:
    known = setting in CONCERNS or setting.partition(".")[0] in CONCERNS
    assert known == (setting not in NEED_A_RESTART)

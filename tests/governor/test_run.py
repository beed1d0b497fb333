"""`slackwater governor run`: what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.governor_commands import governor
from slackwater.governor.service import only_one
from slackwater.governor.types import GovernorError

POOL = '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/run/haproxy.sock"\n'
TARGET = f"{POOL}target_p95_ms = 100\n"
KEY = '[retune]\norder_key = "/none/orders.key"\n'


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        (POOL, [], "there is no target; set the pool's `target_p95_ms`, or give --target-ms"),
        (TARGET, ["--act"], 'governor.mode = "act" needs `retune.order_key`'),
        (f"{TARGET}{KEY}", ["--act"], "the pool only observes"),
        (f'{TARGET}mode = "act"\n{KEY}mode = "observe"\n', ["--act"], "each knob has one owner"),
        (f'{TARGET}mode = "act"\n{KEY}', ["--act"], "/none/orders.key: No such file or directory"),
        (f'{POOL}mode = "act"\n{KEY}', ["--act", "--target-ms", "5"], "/none/orders.key: No such file or directory"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, words: list[str], says: str) -> None:
    config = tmp_path / "controller.toml"
    config.write_text(f'state_dir = "{tmp_path}"\n{text}')
    done = CliRunner().invoke(governor, ["run", "--config", str(config), *words])
    assert done.exit_code == 1
    assert says in str(done.exception)


def test_of_two_governors_the_second_is_refused(tmp_path: Path) -> None:
    with (
        only_one(tmp_path),
        pytest.raises(GovernorError, match="another governor of this controller runs"),
        only_one(tmp_path),
    ):
        pytest.fail("both run")
    with only_one(tmp_path):
        pass

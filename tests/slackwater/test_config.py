"""The controller's settings: what is refused, and how it says where."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from slackwater.core import config, last_settings
from slackwater.core.config import ConfigError, host_and_port, load, parse
from slackwater.lbengine.backends.ipvs.settings import ServicePool
from tests.support.paths import ROOT
from tests.support.placed_case import CASES

POOL = '[[pool]]\nname = "web"\nbackend = "be"\nsocket = "/run/haproxy.sock"\n'


LVS = '[[pool]]\nname = "web"\nbalancer = "lvs"\nservice = "-t 10.0.0.1:80"\n'


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        parse(text, "f.toml")
    return str(error.value)


def unknown(key: str, place: str, nearest: str) -> str:
    return f"unknown setting `{key}` in {place}; the nearest known one is `{nearest}`"


def misplaced(key: str, place: str, home: str) -> str:
    return f"unknown setting `{key}` in {place}; there is one in {home}"


def test_defaults_fill_what_is_not_given() -> None:
    settings = parse(POOL, "f.toml")
    assert settings.pool[0].mode == "observe"
    assert settings.bus.address == "nats://127.0.0.1:14222"
    assert settings.the_pool(None).name == "web"


@pytest.mark.parametrize(
    "service", ["-t 10.0.0.1:80", "-u [fd00::1]:53", "-f 7", "-f 7 -6", "--sctp-service 10.0.0.1:9"]
)
@pytest.mark.parametrize("balancer", ["lvs", "keepalived"])
def test_a_pool_of_ipvs_needs_its_service_only(balancer: str, service: str) -> None:
    text = LVS.replace("lvs", balancer).replace("-t 10.0.0.1:80", service)
    (pool,) = parse(text + '[pool.servers]\n"10.0.0.11:80" = "web1"\n', "f.toml").pool
    assert isinstance(pool, ServicePool)
    assert (pool.balancer, pool.service) == (balancer, service)
    assert pool.servers == {"10.0.0.11:80": "web1"}


GOVERNED = f"{POOL}target_p95_ms = 100\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (f'{POOL}[governor]\nmode = "observe"\n', 6, "no pool has a `target_p95_ms`"),
        (f'{GOVERNED}[governor]\nmode = "act"\n', 7, "needs `retune.order_key`"),
        (
            f'{GOVERNED}[governor]\nmode = "observe"\nknobs = ["cpu.quota"]\n[retune]\nmode = "observe"\n',
            8,
            'both set cpu.quota, cpu.share; each knob has one owner: add to [retune] `leave_alone = ["cpu.quota", ',
        ),
        (f'{GOVERNED}[governor]\nknobs = ["cpu.share"]\n', 7, "governor.knobs[0]: invalid enum value 'cpu.share'"),
        (f"{GOVERNED}[governor]\nquota_shares = [0.5, 0.9]\n", 6, "`quota_shares`: expected ascending shares"),
    ],
)
def test_the_governor_needs_a_target_a_key_and_knobs_of_its_own(text: str, line: int, says: str) -> None:
    sentence = refusal(text)
    assert sentence.startswith(f"f.toml:{line}: ")
    assert says in sentence


def test_each_knob_has_one_owner() -> None:
    text = GOVERNED + '[governor]\nmode = "act"\n[retune]\nmode = "act"\norder_key = "k"\nleave_alone = '
    settings = parse(text + '["cpu.cores", "cpu.frequency", "cpu.quota", "cpu.share"]\n', "f.toml")
    assert settings.governor.owns == set(settings.retune.leave_alone)
    assert "add to [retune]" in refusal(text + '["cpu.cores"]\n')


def test_two_pools_are_two_pools() -> None:
    other = POOL.replace("web", "api").replace('"be"', '"api"') + '[pool.servers]\nhost1 = "node-1"\n'
    settings = parse(POOL + 'mode = "act"\n\n' + other + "\n[lbengine]\nlease_s = 5\n", "f.toml")
    assert [(pool.name, pool.mode) for pool in settings.pool] == [("web", "act"), ("api", "observe")]
    assert settings.pool[1].servers == {"host1": "node-1"}
    assert settings.lbengine.lease_s == 5
    assert settings.the_pool("api").driven["backend"] == "api"
    with pytest.raises(ConfigError, match="several pools, name one with --pool: web, api"):
        settings.the_pool(None)
    with pytest.raises(ConfigError, match="no pool `wbe`; the configuration has: web, api"):
        settings.the_pool("wbe")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (POOL + "\n[lbengine]\nleas_s = 3\n", 7, unknown("leas_s", "lbengine", "lease_s")),
        ('mode = "act"\n' + POOL, 1, misplaced("mode", "the file's top level", "`[[pool]]`")),
        (POOL + 'state_dir = "/"\n', 5, misplaced("state_dir", "pool[0]", "the file's top level")),
        ('balancer = "lvs"\n' + POOL, 1, misplaced("balancer", "the file's top level", "`[[pool]]`")),
        (POOL + "\n[lbengin]\nlease_s = 3\n", 6, unknown("lbengin", "the file's top level", "lbengine")),
        (POOL + POOL.replace("web", "b") + 'mod = "act"\n', 9, unknown("mod", "pool[1]", "mode")),
        ("pool = [\n  {name = 'a', backnd = 'b'},\n]\n", 1, unknown("backnd", "pool[0]", "backend")),
        (POOL + 'mode = "atc"\n', 5, "pool[0].mode: invalid enum value 'atc' (expected \"observe\" or \"act\")"),
        (POOL + '\n[lbengine]\n\nlease_s = "3 s"\n', 8, "lbengine.lease_s: expected `float`, got `str`"),
        (POOL + "\n[lbengine]\nlease_s = 0\n", 7, "lbengine.lease_s: expected `float` > 0.0"),
        (POOL + "target_p95_ms = -5\n", 5, "pool[0].target_p95_ms: expected `float` >= 0.0"),
        (POOL + '[retune]\ncalm_below_p95_ms = "9 ms"\n', 6, "retune.calm_below_p95_ms: expected `float`, got `str`"),
        (POOL + '[lbengine]\n"a\\n\\u001b[2J" = 1\n', 5, unknown("a␊␛[2J", "lbengine", "lease_s")),
        (POOL + "max_mitigated = 1.5\n", 5, "pool[0].max_mitigated: expected `float` <= 1.0"),
        (POOL + '[pool.servers]\n"host1;" = "n"\n', 5, "pool[0].servers: expected a name"),
        ("lbengine = 3\n" + POOL, 1, "lbengine: expected `object`, got `int`"),
        (POOL.replace('"web"', '"we;b"'), 2, "pool[0].name: expected a name of letters"),
        (POOL.replace('"web"', '"web\\n"'), 2, "pool[0].name: expected a name of letters"),
        (POOL.replace('"be"', '"be\\nset"'), 3, "pool[0].backend: expected a name of letters"),
        (POOL.replace("/run/haproxy.sock", ""), 4, "pool[0].socket: expected `str` of length >= 1"),
        (POOL.replace('backend = "be"\n', ""), 1, "pool[0]: `backend` is missing, which `balancer = \"haproxy\"` n"),
        (POOL.replace('socket = "/run/haproxy.sock"\n', ""), 1, "pool[0]: `socket` is missing"),
        (POOL + 'service = "-f 7"\n', 1, "pool[0]: `service` does not go with `balancer = \"haproxy\"`, only"),
        (LVS.replace("service", "# service"), 1, "pool[0]: `service` is missing, which `balancer = \"lvs\"` needs"),
        (LVS + 'backend = "be"\n', 1, "pool[0]: `backend` does not go with `balancer = \"lvs\"`, only"),
        (LVS + 'sockets = ["/s"]\n', 1, "pool[0]: `sockets` does not go with `balancer = \"lvs\"`"),
        (LVS + 'weight_delivery = "agent-check"\n', 1, "pool[0]: `weight_delivery` does not go with `bal"),
        (LVS.replace("lvs", "ipvs"), 3, "pool[0].balancer: invalid enum value 'ipvs' (expected \"haproxy\" or"),
        (LVS.replace("-t ", ""), 4, "pool[0].service: expected a service as for ipvsadm: `-t IP:PORT`"),
        (LVS.replace(":80", ":80; x"), 4, "pool[0].service: expected a service as for ipvsadm"),
        (LVS + LVS.replace("web", "w2").replace("lvs", "keepalived"), 8, "service `-t 10.0.0.1:80` is there twice"),
        ("", 1, "`pool` is missing"),
        ("pool = []\n", 1, "pool: expected `array` of length >= 1"),
        (POOL + '[bus]\nlisten = "localhost"\n', 6, "bus.listen: expected HOST:PORT"),
        (POOL + '[bus]\nlisten = "localhost:65536"\n', 6, "bus.listen: expected HOST:PORT"),
        (POOL + '[bus]\nurl = "localhost:4222"\n', 6, "bus.url: expected nats://HOST:PORT"),
        (POOL + '[bus]\nurl = "tls://a:secret@2001:db8::5:4222"\n', 5, "bus: `url`: expected nats://HOST:PORT"),
        (POOL + '[bus]\nurl = "tls://nats:port"\n', 5, "bus: `url`: expected nats://HOST:PORT"),
        (f"{'.'.join('a' * 3000)} = 1\n", 1, "it is nested too deeply"),
        (POOL + '[web]\nlisten = "8099"\n', 6, 'web.listen: expected HOST:PORT or ""'),
        (POOL + POOL.replace('"be"', '"b2"'), 6, "pool `web` is there twice"),
        (POOL + POOL.replace('"web"', '"w2"'), 7, "backend `be` of /run/haproxy.sock is there twice"),
        ('node = "n1"\n\npool = "web"\n', 1, "this is a node's file; check it with `slackwater-monitor config f.toml`"),
        ('period_s = 0.2\npool = "web"\n', 2, "this is a node's file"),
        (POOL + "state_dir = \n", 5, "not TOML: Invalid value"),
        ("state_dir = [1,\n", 1, "not TOML: "),
        ("a = " + "[" * 3000, 1, "it is nested too deeply"),
        ("a = " + "9" * 5000, 1, "not TOML: a number has too many digits"),
        (POOL + 'name = "again"\n', 5, "not TOML: Cannot overwrite a value"),
    ],
)  # fmt: skip
def test_wrong_setting_is_refused_with_its_line(text: str, line: int, says: str) -> None:
    assert refusal(text).startswith(f"f.toml:{line}: {says}")


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml: cannot be read: No such file"):
        load(tmp_path / "nothing.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.toml:1: not TOML: byte 0xe9 is not UTF-8"):
        load(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:14222", ("::1", 14222)),
        ("nats.example.com:65535", ("nats.example.com", 65535)),
    ],
)
def test_addresses_are_split(address: str, parts: tuple[str, int]) -> None:
    assert parse(POOL + f'[web]\nlisten = "{address}"\n', "f.toml").web.listen == address
    assert host_and_port(address) == parts


def test_every_setting_is_described() -> None:
    rows = config.describe()
    assert all(text for _, _, text in rows)
    assert ("pool.mode", '"observe"') in [(name, default) for name, default, _ in rows]
    assert {name.partition(".")[0] for name, _, _ in rows} == set(config.ControllerSettings.__struct_fields__)


def test_the_reference_is_up_to_date() -> None:
    command = [sys.executable, "-m", "tools.reference_docs", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    """As node.toml is read; some editors write one, and lines that end in CR LF."""
    assert load(CASES / "controller-bom.toml").pool[0].name == "app"
    file = tmp_path / "other.toml"
    file.write_bytes('\ufeffpool = "€"'.encode("utf-16"))
    with pytest.raises(ConfigError, match=f"^{file}:1: not TOML: byte 0xff is not UTF-8, .*; save the file as UTF-8"):
        load(file)


def test_a_wrong_value_of_any_setting_is_refused_with_its_name() -> None:
    names = [name for name, _, _ in config.describe()]
    assert len(names) > 60
    for name in names:
        section, _, key = name.rpartition(".")
        text = f"{key} = {{}}\n{POOL}" if not section else f"{POOL}[{section}]\n{key} = 1979-05-27\n"
        if section == "pool":
            text = re.sub(f"(?m)^{key} = .*\n", "", LVS if key == "service" else POOL) + f"{key} = 1979-05-27\n"
        assert f"{key}: " in refusal(text), name


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e308", "1e-320", "9223372036854775807"])
def test_no_number_is_without_bound(number: str) -> None:
    """With a lease of `inf` no weight would be given back where Verdicts end."""
    says = "f.toml:6: lbengine.lease_s: expected 0 or a number from 0.000001 to 1000000000, got "
    assert refusal(f"{POOL}[lbengine]\nlease_s = {number}\n").startswith(says)


def test_commands_say_too_that_a_file_is_nested_too_deeply(tmp_path: Path) -> None:
    """`slackwater restore --all` looks there for the folder of the stored baselines."""
    file = tmp_path / "controller.toml"
    file.write_text("a = " + "[" * 3000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        last_settings.load_or_last(file)


def test_a_text_with_a_zero_byte_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^f:2: state_dir: it has a zero byte, which no path and no name has"):
        parse('# x\nstate_dir = "/a\\u0000b"\n', "f")
    with pytest.raises(ConfigError, match=r"^f:4: pool.*socket: it has a zero byte"):
        parse('[[pool]]\nname = "a"\nbackend = "a"\nsocket = "/a\\u0000b"\n', "f")

"""Root's commands in the folder of the service's user, who has laid links in it: they lead to nothing of root's, and
what root makes there is the user's."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from click.testing import CliRunner, Result

from slackwater.controller.cli.main import cli
from slackwater.core import state_dir
from slackwater.core.files import in_hands_of, make_state_dir, replacing
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.last_settings import keep
from slackwater.core.state_dir import StateError, send_signal
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.keepalived.keepalived import LocalFiles
from slackwater.lbengine.baseline import Baseline, BaselineStore
from tests.support.other_user import UID, as_user, folder_of_another_user, of_others
from tests.support.real_processes import free_address

SECRET = "the-secret-of-root"
CONFIG = """
state_dir = "{folder}"
[bus]
listen = "{bus}"
[web]
listen = "{web}"
[[pool]]
name = "web"
backend = "web"
socket = "{folder}/../admin.sock"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_of_another_user() as made:
        (made.parent / "controller.toml").write_text(CONFIG.format(folder=made, bus=free_address(), web=free_address()))
        yield made


@pytest.fixture
def secret(folder: Path) -> Path:
    """A file that root alone reads, beside the folder."""
    path = folder.parent / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def run(folder: Path, *words: str, text: str = "") -> Result:
    return CliRunner().invoke(cli, [*words, "--config", str(folder.parent / "controller.toml")], input=text)


COMMANDS = [
    ("bus", "node", "add", "web", "web1"),
    ("bus", "node", "remove", "web1"),
    ("bus", "node", "list"),
    ("bus", "node", "settings", "web1"),
    ("web", "user", "add", "anna"),
    ("web", "user", "list"),
    ("web", "token", "add", "grafana"),
    ("restore", "--all"),
    ("pause", "--pool", "web"),
    ("status",),
    ("log",),
    ("week",),
    ("why", "web1"),
    ("mark", "web1", "backup", "--begin"),
    ("reload",),
    ("check",),
    ("governor", "run", "--for", "1s"),
]
FOLDERS = ["bus", "bus/passwords", "baseline", "locks", "jetstream"]
NAMES = [
    *FOLDERS,
    *("bus/nodes", "bus/nats.conf", "bus/passwords/web1.password", "bus/passwords/slackwater-control.password"),
    *("bus/passwords/slackwater-controller.password", "web-users.json", "web-users.lock", "web-session-key"),
    *("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "baseline/web.json", "paused-web.json"),
    *("by-hand-web.json", "marks.jsonl", "serve.json", "serve.lock", "governor.lock", "settings-in-force.json"),
    *("hooks.json", "otlp.json", "retune.json", "nats.log"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_link_in_place_of_any_file_leads_nowhere(folder: Path, words: tuple[str, ...]) -> None:
    """Each name in turn stands for a folder of root's and a file of root's, also where the others are as usual."""
    theirs = folder.parent / "of-root"
    (theirs / "passwords").mkdir(parents=True)
    theirs.chmod(0o755)
    for name in ("nodes", "nats.conf", "web.json", "passwords/web1.password", "secret"):
        (theirs / name).write_text(f'{{"web": "{SECRET}"}}\n')
        (theirs / name).chmod(0o600)
    before = {path: (path.lstat(), path.read_bytes() if path.is_file() else b"") for path in theirs.rglob("*")}
    for name in NAMES:
        to = theirs if name in FOLDERS else theirs / "secret"
        as_user(folder, f"rm -rf ./* && mkdir -p {Path(name).parent} && ln -s {to} {name}")
        done = run(folder, *words, text="long enough a password\n")
        assert SECRET not in done.output + str(done.exception)
        for path, (earlier, data) in before.items():
            now = path.lstat()
            assert (now.st_mode, now.st_uid, now.st_gid) == (earlier.st_mode, earlier.st_uid, earlier.st_gid), (
                name,
                path,
            )
            assert not path.is_file() or path.read_bytes() == data, (name, path)
        assert set(theirs.rglob("*")) == set(before), name
        made = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert not [path for path in made if SECRET.encode() in path.read_bytes()], name
        assert of_others(folder) == [], name


def test_what_root_makes_the_service_can_use(folder: Path) -> None:
    """A journal of root's, 0600, once kept the service from starting."""
    assert run(folder, "web", "user", "add", "anna", text="long enough a password\n").exit_code == 0
    assert run(folder, "bus", "node", "add", "web", "web1").exit_code == 0
    assert run(folder, "mark", "web1", "backup", "--begin").exit_code == 0
    with Journal.open(journal_path(folder)):
        pass
    with replacing(folder / "baseline" / "web.json") as draft:
        draft.write_text("{}")
    assert of_others(folder) == []
    assert {path.name for path in folder.iterdir()} >= {"web-users.json", "bus", "journal.sqlite", "marks.jsonl"}
    for name in ("web-users.json", "bus/nats.conf", "bus/passwords/web1.password"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_the_journal_too_is_opened_with_the_users_rights(folder: Path) -> None:
    """SQLite follows links, also from the two files beside it."""
    victim = folder.parent / "other.sqlite"
    with sqlite3.connect(victim) as database:
        database.execute("CREATE TABLE kept (x)")
    victim.chmod(0o600)
    before = victim.read_bytes()
    as_user(folder, "ln -s ../other.sqlite journal.sqlite")
    with pytest.raises(Exception, match="cannot be opened"):
        Journal.open(journal_path(folder))
    assert victim.read_bytes() == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["controller.toml", "other.sqlite", "state"]


def test_a_balancers_file_in_another_hands_is_replaced_with_its_users_rights(folder: Path, secret: Path) -> None:
    """keepalived's weights are in files that the service may write."""
    as_user(folder, f"ln -s {secret} .weight.slackwater; ln -s {secret} weight")
    LocalFiles().replace(str(folder / "weight"), "1\n")
    assert secret.read_text() == SECRET
    assert (folder / "weight").read_text() == "1\n"
    assert of_others(folder) == []


@pytest.mark.parametrize("command", [("bus", "node", "add", "web", "web1"), ("reload",)], ids=" ".join)
def test_root_sends_no_signal_to_a_process_of_another_user(folder: Path, command: tuple[str, ...]) -> None:
    """`serve.json` and `serve.lock` may name any process."""
    with subprocess.Popen(["sleep", "600"]) as victim:
        config = folder.parent / "controller.toml"
        described = f'{{"pid": {victim.pid}, "config": "{config}", "children": {{"nats-server": {victim.pid}}}}}'
        as_user(folder, f"echo {victim.pid} > serve.lock; echo '{described}' > serve.json")
        with subprocess.Popen(
            ["flock", "serve.lock", "sh", "-c", "echo held; read x"], cwd=folder, stdin=PIPE, stdout=PIPE
        ) as holder:
            assert holder.stdout
            assert holder.stdin
            assert holder.stdout.readline() == b"held\n"
            done = run(folder, *command)
            holder.stdin.close()
        assert done.exit_code == 1
        assert f"process {victim.pid}, which {folder} names, belongs to another user than that folder" in done.output
        assert victim.poll() is None
        victim.kill()


def test_a_signal_goes_to_the_users_own_process_and_to_no_number(folder: Path) -> None:
    as_them = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "sh", "-c", "echo up; exec sleep 600"]
    with subprocess.Popen(as_them, stdout=subprocess.PIPE) as theirs:
        assert theirs.stdout
        assert theirs.stdout.readline() == b"up\n"
        send_signal(folder, theirs.pid, signal.SIGTERM)
        assert theirs.wait() == -signal.SIGTERM
    for number in (theirs.pid, 0, -1, 2**40):
        with pytest.raises((ProcessLookupError, OverflowError)):
            send_signal(folder, number, signal.SIGTERM)
    with pytest.raises(StateError, match="belongs to another user"):
        send_signal(folder, 1, signal.SIGTERM)


def test_serve_does_not_run_as_root_in_the_folder_of_another_user(folder: Path) -> None:
    """nats-server and SQLite would leave files there that the service cannot use."""
    done = run(folder, "serve")
    assert done.exit_code == 1
    assert f"state_dir {folder}: is user {UID}'s" in done.output
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("words", [("bus", "node", "add", "web", "web1"), ("web", "user", "add", "anna")], ids=" ".join)
def test_a_command_before_the_first_start_makes_the_folder_closed_to_others(
    folder: Path, words: tuple[str, ...]
) -> None:
    folder.rmdir()
    assert run(folder, *words, text="long enough a password\n").exit_code == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_the_folder_is_made_for_the_services_user_if_there_is_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.core.files.SERVICE_USER", "nobody")
    made = folder.parent / "made"
    make_state_dir(made)
    assert made.stat().st_uid == 65534
    assert stat.S_IMODE(made.stat().st_mode) == 0o750
    make_state_dir(folder / "below")
    assert (folder / "below").stat().st_uid == UID, "what is in somebody's hands already is theirs"


def test_whose_hands_a_path_is_in(folder: Path) -> None:
    """Who can put something else there, not who owns the file: a user may link a file of root's into his folder."""
    above = folder.parent
    as_user(folder, "mkdir a; ln -s /etc b; touch c")
    (folder / "a/of-root").mkdir()
    (folder / "d").write_text("")
    (above / "link").symlink_to(folder)
    (above / "of-root").symlink_to("/etc")
    theirs = (UID, UID)
    for name in ("a", "a/x", "a/of-root", "a/of-root/x", "b", "b/passwd", "c", "d", "not-there/x"):
        assert in_hands_of(folder / name) == theirs, name
    assert in_hands_of(folder) == theirs
    for path in ("controller.toml", "", "not-there/x", "of-root/passwd", "of-root"):
        assert in_hands_of(above / path) is None, path
    assert in_hands_of(above / "link" / "x") == theirs, "root's link to the folder"
    os.chown(above / "of-root", UID, UID, follow_symlinks=False)
    assert in_hands_of(above / "of-root" / "passwd") == theirs, "whose it is may let it lead elsewhere"


def test_root_is_itself_again_afterwards(folder: Path, secret: Path) -> None:
    with replacing(folder / "x") as draft:
        draft.write_text("x")
        with pytest.raises(PermissionError):
            secret.read_text()
    assert secret.read_text() == SECRET
    with pytest.raises(RuntimeError), replacing(folder / "x"):
        raise RuntimeError
    assert secret.read_text() == SECRET
    assert of_others(folder) == []


IMPORTS_AS_ANOTHER = """
import ctypes, sys
from pathlib import Path
from slackwater.core.files import secret_of
from slackwater.orders.signing import Signer
libc = ctypes.CDLL(None)
class Watch:
    def find_spec(name, path=None, target=None):
        if libc.setfsuid(-1):
            print(name)
sys.meta_path.insert(0, Watch)
folder = Path(sys.argv[1])
assert secret_of(folder / "password")[0] == "word"
Signer.load(folder / "order.key")
from click.testing import CliRunner
from slackwater.controller.cli.main import cli
for words in (["bus", "node", "add", "web", "web1"], ["mark", "web1", "backup", "--begin"], ["status"], ["log"],
              ["restore", "--all"]):
    CliRunner().invoke(cli, [*words, "--config", str(folder.parent / "controller.toml")])
"""


def test_nothing_is_imported_with_another_users_rights(folder: Path) -> None:
    """Python's own files may be root's alone, as below /root; a codec's first use is an import too."""
    as_user(folder, "umask 077 && printf word >password && openssl genpkey -algorithm ed25519 -out order.key")
    done = subprocess.run([sys.executable, "-c", IMPORTS_AS_ANOTHER, str(folder)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_supervisor_sees_a_folder_of_its_own_user(tmp_path: Path) -> None:
    assert state_dir.prepare(str(tmp_path / "made")) == tmp_path / "made"
    with socket.socket(socket.AF_UNIX) as listener:  # of any kind: it is no file of ours
        listener.bind(str(tmp_path / "made/x"))
    assert state_dir.read_serve(tmp_path / "made") is None


@pytest.mark.parametrize("made", ["mkfifo", "ln -s /dev/zero", "truncate -s 900G"])
@pytest.mark.parametrize(
    "name",
    ["baseline/web.json", "web-users.json", "serve.lock", "bus/nodes", "bus/nats.conf", "journal.sqlite"],
)
def test_what_never_ends_in_place_of_a_file_holds_up_nobody(folder: Path, name: str, made: str) -> None:
    as_user(folder, f"umask 077 && mkdir -p {Path(name).parent} && {made} {name}")
    for words in (
        ("restore", "--all"),
        ("web", "user", "list"),
        ("bus", "node", "list"),
        ("bus", "node", "add", "web", "web1"),
        ("status",),
    ):
        assert not isinstance(run(folder, *words).exception, MemoryError)
    assert of_others(folder) == []


AS_ROOT = """
import os, sys
from pathlib import Path
from slackwater.core.last_settings import load_or_last
import slackwater.lbengine.backends.table
settings = load_or_last(Path(sys.argv[1]))
print(settings.pool[0].backend, os.getresuid(), os.getresgid())
"""


def test_with_the_settings_that_the_service_kept_root_is_the_service(folder: Path) -> None:
    """They name sockets, files and commands' targets, and the service's user may write there what it likes."""
    config = folder.parent / "controller.toml"
    keep(folder, config, config.read_text().replace('backend = "web"', 'backend = "of-the-service"'))

    def who() -> str:
        done = subprocess.run([sys.executable, "-c", AS_ROOT, str(config)], capture_output=True, text=True)
        return done.stdout.strip()

    assert who() == "web (0, 0, 0) (0, 0, 0)", "its own settings are root's"
    config.write_text(config.read_text() + "\n[broken\n")
    assert who() == f"of-the-service ({UID}, {UID}, {UID}) ({UID}, {UID}, {UID})"
    os.chown(folder, 0, 0)
    os.chown(folder / "settings-in-force.json", 0, 0)
    assert who() == "of-the-service (0, 0, 0) (0, 0, 0)"


def test_where_only_the_services_files_know_a_pool_root_is_the_service(folder: Path) -> None:
    """`restore --all` finds pools that are in no settings any more by their stored baselines."""
    with socket.socket(socket.AF_UNIX) as listener:
        where = folder.parent / "of-another.sock"
        listener.bind(str(where))
        listener.listen()
        listener.settimeout(60)
        where.chmod(0o666)
        BaselineStore(folder, HAProxyPool(name="left", backend="left", socket=str(where))).save({"a": Baseline(9, 9)})
        command = [sys.executable, "-P", "-m", "slackwater.controller.cli.main", "restore", "--all", "--config"]
        with subprocess.Popen([*command, str(folder.parent / "controller.toml")], stderr=subprocess.DEVNULL) as restore:
            connection, _ = listener.accept()
            with connection:
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            restore.kill()
    assert struct.unpack("3i", peer)[1] == UID

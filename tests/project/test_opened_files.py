"""One module opens, makes and removes files: `slackwater/core/files.py`, for root with the rights of who has them in
hands.

A place that does so itself is within one of its blocks (`as_owner`, `replacing`), or in `ALLOWED` with its reason: what
it opens is then never in a folder of the service's user.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.code_places import assert_only, in_functions, places, python_files
from tests.support.paths import ROOT

PACKAGES = ("slackwater", "detector", "lbengine", "web")
ONE = "slackwater/core/files.py"
OPENS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "truncate", "mkstemp", "mkdir"}
OPENS |= {
    "makedirs",
    "unlink",
    "rmdir",
    "rmtree",
    "rename",
    "renames",
    "symlink",
    "symlink_to",
    "link",
    "hardlink_to",
    "chmod",
}
OPENS |= {"fchmod", "lchmod", "chown", "fchown", "lchown", "scandir", "listdir", "copyfile", "copytree"}
SIGNALS = {"kill", "killpg", "pidfd_send_signal"}
BLOCKS = {"as_owner", "replacing"}
NOT_FILES = {"Journal", "tarfile", "BACKENDS[pool.balancer]", "context().streams"}
"""What has an `open` of its own; `Journal.open` opens by `slackwater/core/journal/database.py`."""

ALLOWED = {
    (
        "slackwater/controller/support/archive.py",
        "write_private",
    ): "a new file where the caller wants it, which stays root's",
    ("slackwater/controller/supervise/parts.py", "of"): "a file in memory",
    ("slackwater/controller/supervise/parts.py", "read_settings"): "a file in memory",
    ("slackwater/core/journal/schema.py", "connect"): "within the block of database.py",
    ("slackwater/core/journal/schema.py", "force_log"): "within the block of database.py",
    ("slackwater/core/journal/database.py", "_begin_anew"): "within the block of `used`",
    ("slackwater/core/journal/database.py", "_save"): "within the block of `used`",
    ("slackwater/core/journal/database.py", "_held"): "within the block of `used`",
    ("lbengine/backends/haproxy/configuration.py", "text_of"): "HAProxy's own file; shared with the Ansible modules",
    ("lbengine/backends/haproxy/configuration.py", "_strings"): "of /proc; shared with the Ansible modules",
    ("lbengine/backends/haproxy/measured.py", "read"): "comes with the package",
    ("slackwater/core/bus/peers.py", "_established"): "the kernel's list of connections, in /proc",
    ("slackwater/core/machine.py", "has_ended"): "signal 0, which is none",
    ("slackwater/core/state_dir.py", "is_alive"): "signal 0, which is none",
    ("slackwater/core/state_dir.py", "send_signal"): "has looked whose process it is",
    ("slackwater/core/programs.py", "_end_of"): "a child of its own",
    ("web/memory.py", "limit"): "of the process itself, in /proc",
    ("detector/train/calibrate.py", "stopped"): "a child of its own",
}


def is_opening(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    match node.func:
        case ast.Name(id="open"):
            return True
        case ast.Attribute(value=owner, attr="open") if ast.unparse(owner) in NOT_FILES:
            return False
        case ast.Attribute(value=ast.Name(id="sqlite3"), attr="connect"):
            return True
        case ast.Attribute(attr="replace"):  # a path's has the new path alone; those of texts and values have more
            return len(node.args) == 1 and not node.keywords
        case ast.Attribute(value=ast.Name(id="os" | "signal"), attr=name) if name in SIGNALS:
            return True
        case ast.Attribute(attr=name):
            return name in OPENS
    return False


def is_block(node: ast.AST) -> bool:
    return isinstance(node, ast.With | ast.AsyncWith) and any(
        isinstance(item.context_expr, ast.Call)
        and isinstance(item.context_expr.func, ast.Name)
        and item.context_expr.func.id in BLOCKS
        for item in node.items
    )


def openings(source: str) -> Iterator[tuple[str, str]]:
    """The function (or `module`) and the call, of each that is in no block of `slackwater/core/files.py`."""
    for function, call in in_functions(source, is_opening, is_block):
        yield function, ast.unparse(call)


def test_no_other_code_opens_files() -> None:
    files = [path for path in python_files(*PACKAGES) if path != ROOT / ONE]
    assert_only(ALLOWED, places(files, openings))


@pytest.mark.parametrize(
    "code",
    [
        "open(path)",
        "path.open('w')",
        "os.open(path, flags)",
        "(folder / 'x').write_text(text)",
        "draft.replace(path)",
        "os.chown(path, 0, 0)",
        "sqlite3.connect(path)",
        "os.kill(pid, 15)",
        "def f():\n    with suppress(OSError):\n        path.unlink()",
    ],
)
def test_an_opening_is_seen(code: str) -> None:
    assert list(openings(code))


@pytest.mark.parametrize(
    "code",
    [
        "bytes_of(path)",
        "text.replace('a', 'b')",
        "msgspec.structs.replace(value, a=1)",
        "Journal.open(path)",
        "self._process.kill()",
        "with replacing(path) as draft:\n    draft.write_bytes(data)",
        "with suppress(OSError), as_owner(path):\n    path.unlink()",
    ],
)
def test_what_opens_nothing_or_as_the_owner_is_left_alone(code: str) -> None:
    assert not list(openings(code))

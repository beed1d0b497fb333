"""Which files in the package's folder our commands have written. Its purge removes those that nobody has edited since
(`packaging/controller/postrm`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.core.files import bytes_of, exists, text_of, write_whole
from slackwater.core.options import DEFAULT_CONFIG

FOLDER = Path(DEFAULT_CONFIG).parent
LIST = ".written.sha256"
"""Name of the list. Each line has a digest and the name of a file, as those of sha256sum(1)."""


@contextmanager
def noted(path: Path) -> Iterator[None]:
    """Lists the file that the block writes, if there was none or nobody has edited it since it was listed."""
    if path.absolute().parent != FOLDER or path.is_symlink():
        yield
        return
    is_ours = not exists(path) or _listed().get(path.name) == _digest(path)
    yield
    listed = _listed()
    listed.pop(path.name, None)
    if is_ours:
        listed[path.name] = _digest(path)
    write_whole(FOLDER / LIST, "".join(f"{digest}  {name}\n" for name, digest in sorted(listed.items())).encode())


def _listed() -> dict[str, str]:
    """Name of each listed file -> its digest."""
    if not exists(FOLDER / LIST):
        return {}
    lines = [line.partition("  ") for line in text_of(FOLDER / LIST).splitlines()]
    return {name: digest for digest, _, name in lines}


def _digest(path: Path) -> str:
    return hashlib.sha256(bytes_of(path)).hexdigest()

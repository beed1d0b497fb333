"""Files that are replaced whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.core.files import replace_durably, replacing


def test_a_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    replace_durably(path, b"old")
    with replacing(path) as draft:
        draft.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_a_block_that_fails_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(draft: Path) -> None:
        draft.write_bytes(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError), replacing(path) as draft:
        fail(draft)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]

"""The inputs of the Python fuzzers, found ones among them, go through their decoders; no fuzzer is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.python.targets import TARGETS
from tests.support.paths import ROOT
from tools import fuzz

PYTHON = ROOT / "fuzz/python/corpus"
MOST_BYTES = 200_000
"""Most bytes of one corpus: it stays small."""


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_goes_through_its_decoder(name: str) -> None:
    inputs = sorted((PYTHON / name).iterdir())
    assert inputs
    for file in inputs:
        TARGETS[name].run(file.read_bytes())


def test_every_target_is_one_of_the_runners() -> None:
    assert set(TARGETS) == set(fuzz.TARGETS["python"])
    assert {file.stem for file in (ROOT / "fuzz/fuzz_targets").iterdir()} == set(fuzz.TARGETS["rust"])


@pytest.mark.parametrize("folder", [PYTHON, ROOT / "fuzz/corpus"])
def test_the_inputs_in_the_repository_stay_small(folder: Path) -> None:
    for corpus in sorted(folder.iterdir()):
        # `tools/fuzz.py` writes the seeds; they are not in the repository.
        sizes = [file.stat().st_size for file in corpus.iterdir() if not file.name.startswith("seed-")]
        assert sum(sizes) < MOST_BYTES, corpus
        assert max(sizes, default=0) <= fuzz.LONGEST, corpus


def test_a_decoder_that_raises_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_kind: str, _data: bytes) -> None:
        raise UnicodeDecodeError("utf-8", b"\\xff", 0, 1, "invalid")

    monkeypatch.setattr("slackwater.core.messages.decode", broken)
    with pytest.raises(UnicodeDecodeError):
        TARGETS["messages"].run(b"{}")

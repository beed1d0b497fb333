"""Text from nodes reaches no terminal with control characters, whatever message, journal row or answer brings it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slackwater.core.journal.journal import Journal
from slackwater.core.messages import KINDS, Change, MessageError, decode, encode, plain_json, plain_text
from slackwater.detector.features import sample_decoder
from slackwater.lbengine.backends.haproxy.haproxy import in_words
from tests.support.paths import ROOT

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\n\t\x7f\x9b31m\u202eevil\u2066\u2028\u200f"
EXAMPLES = sorted((ROOT / "schema/examples").glob("*.json"))


def is_control(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Zl", "Zp"} or unicodedata.bidirectional(character) in {
        *("LRE", "RLE", "LRO", "RLO", "PDF"),
        *("LRI", "RLI", "FSI", "PDI"),
    }


def texts(value: Any) -> Iterator[str]:
    """All strings in what JSON can hold, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, nested in value.items():
            yield name
            yield from texts(nested)
    elif isinstance(value, list):
        for nested in value:
            yield from texts(nested)


def hostile(value: Any) -> Any:
    """The same with the hostile text at the end of each string."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, list):
        return [hostile(nested) for nested in value]
    if isinstance(value, dict):
        return {name: hostile(nested) for name, nested in value.items()}
    return value


def test_each_control_character_is_replaced_and_nothing_else() -> None:
    every = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    plain = plain_text(every)
    assert len(plain) == len(every)
    assert not any(map(is_control, plain))
    changed = [before for before, after in zip(every, plain, strict=True) if before != after]
    assert all(is_control(character) or character in "\u061c\u200e\u200f" for character in changed)
    assert plain_text("\x1b[31m\n") == "␛[31m␊"
    assert plain_text("Ümlaut — “quoted” 日本 🙂") == "Ümlaut — “quoted” 日本 🙂"


@pytest.mark.parametrize("as_ascii", [True, False])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_whatever_text_a_message_has_its_controls_are_replaced(path: Path, as_ascii: bool) -> None:
    """Field by field: the message is refused, or no text in it has a control character left."""
    kind = path.name.partition("-")[0]
    golden = json.loads(path.read_text())
    read = 0
    for name, value in golden.items():
        message = {**golden, name: hostile(value)}
        try:
            decoded = decode(kind, json.dumps(message, ensure_ascii=as_ascii))
        except MessageError:
            continue
        read += 1
        assert not any(is_control(character) for text in texts(json.loads(encode(decoded))) for character in text)
    assert read, "some fields are free text"


def test_json_that_needs_no_cleaning_stays_as_it_is_and_the_rest_keeps_its_meaning() -> None:
    for path in EXAMPLES:
        data = path.read_bytes()
        assert json.loads(plain_json(data)) == json.loads(data)
    assert plain_json('{"a":1}') == b'{"a":1}'
    assert json.loads(plain_json(r'{"a\u001b":["\u00e9\"\\",1,2.5,null,true]}')) == {"a␛": ['é"\\', 1, 2.5, None, True]}


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 100_000, '{"node":"n","extra":' + "[" * 100_000])
@pytest.mark.parametrize("escape", ["", '"\\n"'])
def test_json_that_is_nested_too_deep_is_refused(nested: str, escape: str) -> None:
    for kind in KINDS:
        with pytest.raises(MessageError, match=f"^{kind}: "):
            decode(kind, nested + escape)
    with pytest.raises(MessageError, match=r"^sample: "):
        sample_decoder.decode((nested + escape).encode())


def test_a_journal_that_has_control_characters_shows_none(tmp_path: Path) -> None:
    """Whoever wrote the rows."""
    example = next(path for path in EXAMPLES if path.name.startswith("change"))
    change = msgspec.structs.replace(msgspec.json.decode(example.read_bytes(), type=Change), why=HOSTILE, by=HOSTILE)
    path = tmp_path / "journal.sqlite"
    with Journal.open(path) as journal:
        journal.record(change)
        assert "\\u001b" in journal._database.connection.execute("SELECT json FROM changes").fetchone()[0], (
            "it is stored"
        )
        (shown,) = journal.changes(change.pool)
    assert shown.why == plain_text(HOSTILE)
    assert not any(is_control(character) for text in texts(msgspec.to_builtins(shown)) for character in text)


def test_haproxys_refusal_has_no_control_characters() -> None:
    assert in_words("Refused \x1b[31m.\n") == "Refused ␛[31m."

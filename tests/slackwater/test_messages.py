"""The messages: golden examples, schema files, what is tolerated and what is refused."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core import messages
from slackwater.core.messages import KINDS, MessageError, decode, encode, is_name
from slackwater.detector.features import sample_decoder
from tests.support.paths import ROOT

EXAMPLES = sorted((ROOT / "schema/examples").glob("*.json"))
BINARY = sorted((ROOT / "schema/examples").glob("*.msgpack"))
BAD_NAMES = ["", "a;b", "a b", "a\nb", "a\n", "\na", "a..b", ".a", "a.", ":a", "*", ">", "a/b", "é", "a\x00", "a" * 129]
GOOD_NAMES = ["web1", "web-1.example.com", "n_1", "10.0.0.1:80", "-x", "a" * 128]


def kind_of(path: Path) -> str:
    return path.name.partition("-")[0]


def golden(kind: str) -> dict[str, Any]:
    path = next(path for path in EXAMPLES if kind_of(path) == kind)
    return dict(json.loads(path.read_text()))


def validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / f"schema/{kind}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_kind_has_an_example() -> None:
    assert {kind_of(path) for path in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_golden_example_follows_its_schema_and_round_trips(path: Path) -> None:
    text = path.read_text()
    validator(kind_of(path)).validate(json.loads(text))
    message = decode(kind_of(path), text)
    assert isinstance(message, KINDS[kind_of(path)])
    assert json.loads(encode(message)) == json.loads(text)


@pytest.mark.parametrize("path", BINARY, ids=lambda path: path.stem)
def test_golden_sample_is_the_same_in_messagepack(path: Path) -> None:
    """The tests of the other language have the same files."""
    data, text = path.read_bytes(), path.with_suffix(".json").read_text()
    assert decode("sample", data) == decode("sample", text)
    assert msgspec.msgpack.encode(msgspec.to_builtins(decode("sample", text))) == data


def test_texts_in_messagepack_are_made_plain_too() -> None:
    sample = messages.Sample(1, "n", "p", 1.0, "boot", 0, 0.2, absent={"cpu": "no \x1b[31m/proc\x7f"})
    decoded = decode("sample", msgspec.msgpack.encode(sample))
    assert isinstance(decoded, messages.Sample)
    assert decoded.absent == {"cpu": "no ␛[31m/proc␡"}


@given(data=st.binary(max_size=200), cut=st.integers(0, 400), path=st.sampled_from(BINARY))
def test_any_bytes_are_a_sample_or_a_message_error(data: bytes, cut: int, path: Path) -> None:
    golden = path.read_bytes()
    for damaged in (data, b"\x81" + data, golden[:cut] + data, golden[:cut] + data + golden[cut + len(data) :]):
        for read in (partial(decode, "sample"), sample_decoder.decode):
            with contextlib.suppress(MessageError):
                assert is_name(read(damaged).node)  # type: ignore[union-attr]  # all kinds but these have one


def test_whole_numbers_stay_whole() -> None:
    """A knob's value of 8 must not come back as 8.0: the other language tells them apart."""
    order = {**golden("order"), "value": 8}
    assert b'"value":8,' in encode(decode("order", json.dumps(order)))


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_another_version_is_refused(kind: str, version: int) -> None:
    other = {**golden(kind), "v": version}
    assert not validator(kind).is_valid(other)
    with pytest.raises(MessageError, match=r"\$\.v"):
        decode(kind, json.dumps(other))


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_fields_are_tolerated(kind: str) -> None:
    newer = {**golden(kind), "of_the_future": {"x": 1}}
    validator(kind).validate(newer)
    assert decode(kind, json.dumps(newer)) == decode(kind, json.dumps(golden(kind)))


@pytest.mark.parametrize(
    ("kind", "field", "value", "named"),
    [
        ("sample", "seq", "3", "$.seq"),
        ("sample", "seq", -1, "$.seq"),
        ("sample", "cpu", {"scope": "system", "utilisation": "full"}, "$.cpu.utilisation"),
        ("sample", "cpu", {"scope": "galaxy"}, "$.cpu.scope"),
        ("sample", "cpu", {"scope": "system", "steal": 1.2}, "$.cpu.steal"),
        ("sample", "traffic", {"in_flight": -1}, "$.traffic.in_flight"),
        ("sample", "traffic", {"rps": 1e308}, "$.traffic.rps"),
        ("verdict", "time_unix_s", 1e12, "$.time_unix_s"),
        ("order", "lease_s", 1e16, "$.lease_s"),
        ("sample", "absent", {"cpu": None}, "$.absent"),
        ("verdict", "state", "nervous", "$.state"),
        ("verdict", "severity", 1.5, "$.severity"),
        ("verdict", "path", "because", "$.path"),
        ("order", "lease_s", 0, "$.lease_s"),
        ("change", "applied", "yes", "$.applied"),
        ("cycle", "servers", [{"server": "a"}], "$.servers[0]"),
        ("cycle", "weights_mean", "luck", "$.weights_mean"),
    ],
)
def test_wrong_value_is_refused_with_the_fields_name(kind: str, field: str, value: object, named: str) -> None:
    wrong = {**golden(kind), field: value}
    assert not validator(kind).is_valid(wrong)
    with pytest.raises(MessageError) as refusal:
        decode(kind, json.dumps(wrong))
    assert str(refusal.value).startswith(f"{kind}: ")
    assert named in str(refusal.value)


def with_each_whole_number(value: Any, number: int) -> Iterator[Any]:
    """The value as often as there is a whole number in it, with this one in its place."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, element in items:
        changed = with_each_whole_number(element, number)
        for inserted in [number] if type(element) is int else changed:
            copy = value.copy()
            copy[key] = inserted
            yield copy


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30, 10**400], ids=["2^63", "-2^63-1", "10^30", "10^400"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_whole_number_beyond_64_bits_is_refused_wherever_it_stands(path: Path, number: int) -> None:
    """SQLite has none, nor has a column of numbers: what takes a message in may count on it."""
    kind = path.stem.partition("-")[0]
    changed = list(with_each_whole_number(json.loads(path.read_text()), number))
    assert changed, "a version at least"
    for message in changed:
        with pytest.raises(MessageError):
            decode(kind, json.dumps(message))


def numbers(schema: Any) -> Iterator[dict[str, Any]]:
    """Each part of a schema that describes a number."""
    if isinstance(schema, dict):
        if schema.get("type") in ("number", "integer"):
            yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from numbers(part)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_has_bounds(kind: str) -> None:
    """The sum of two nodes' 1e308 requests per second is no number."""
    described = list(numbers(json.loads((ROOT / f"schema/{kind}.json").read_text())))
    assert described, "a version at least"
    for number in described:
        assert "maximum" in number, number
        assert number.keys() & {"minimum", "exclusiveMinimum"}, number


@pytest.mark.parametrize("kind", KINDS)
def test_missing_field_is_refused_with_its_name(kind: str) -> None:
    less = golden(kind)
    del less["pool"]
    assert not validator(kind).is_valid(less)
    with pytest.raises(MessageError, match="`pool`"):
        decode(kind, json.dumps(less))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"v": 1e999}', b'{"node": "\xff"}', b"\x81", b"\xc1"]
)
def test_what_is_no_message_is_a_message_error(data: bytes) -> None:
    with pytest.raises(MessageError, match=r"^sample: "):
        decode("sample", data)


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(("kind", "field"), [("sample", "node"), ("sample", "pool"), ("verdict", "node")])
def test_name_that_could_start_another_command_is_refused(kind: str, field: str, name: str) -> None:
    assert not is_name(name)
    wrong = {**golden(kind), field: name}
    assert not validator(kind).is_valid(wrong)
    with pytest.raises(MessageError, match=rf"\$\.{field}"):
        decode(kind, json.dumps(wrong))


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_usual_names_are_accepted(name: str) -> None:
    assert is_name(name)
    fine = {**golden("sample"), "node": name}
    validator("sample").validate(fine)
    decode("sample", json.dumps(fine))


def test_messages_of_before_have_no_causes() -> None:
    for kind in ("change", "cycle", "knobs", "sample"):
        for path in EXAMPLES:
            if kind_of(path) != kind:
                continue
            text = path.read_text()
            old = json.loads(text)
            old.pop("cause", None)
            old.pop("absence_causes", None)
            for part in [*old.get("servers", []), *old.get("knobs", [])]:
                part.pop("cause", None)
            assert b'"cause"' not in encode(decode(kind, json.dumps(old)))


def test_a_cycle_of_before_leaves_open_what_weights_mean() -> None:
    old = golden("cycle")
    del old["weights_mean"]
    decoded = decode("cycle", json.dumps(old))
    assert isinstance(decoded, messages.Cycle)
    assert decoded.weights_mean is None


def test_absent_values_are_left_out_of_the_json() -> None:
    sample = messages.Sample(1, "n", "p", 1.0, "boot", 0, 0.2, absent={"cpu": "no /proc"})
    assert "cpu" not in json.loads(encode(sample))


def test_schema_files_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/schema.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

#!/usr/bin/env python3
"""One fuzz target of the Python decoders under libFuzzer, by atheris; `tools/fuzz.py` calls it.

usage: python_target.py TARGET DICTIONARY LIBFUZZER-ARGUMENT...
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
with atheris.instrument_imports(include=["slackwater", "json", "csv", "tomllib", "nats"]):
    from fuzz.python import targets

STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 1e300, -0.0, 1e-320, "", "a", "\x1b[2J", "\ud800"),
    *([], {}, [[]], "é" * 300, "0" * 300),
)
"""Values that decoders meet seldom."""


def mutated(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """A JSON value with one thing changed somewhere within."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    if not inner or chance.random() < 0.1 * depth:
        if isinstance(value, float | int) and chance.random() < 0.5:
            return value * chance.choice([-1, 0, 2, 1e3, 1e-3, 1e300])
        return chance.choice(STRANGE)
    key, nested = chance.choice(inner)
    match chance.randrange(8):
        case 0:
            inner.remove((key, nested))
        case 1:
            inner.append((chance.choice(inner)[0], nested))
        case _:
            inner[inner.index((key, nested))] = (key, mutated(nested, chance, depth + 1))
    return dict(inner) if isinstance(value, dict) else [nested for _, nested in inner]


def mutate_json(data: bytes, most: int, seed: int) -> bytes:
    """Changes an input as JSON where it is that; now and then, and where it is not, as bytes."""
    chance = random.Random(seed)
    if chance.random() < 0.8:
        try:
            changed = json.dumps(mutated(json.loads(data), chance)).encode()
        except (ValueError, RecursionError, OverflowError):
            pass
        else:
            if len(changed) <= most:
                return changed
    return bytes(atheris.Mutate(data, most))


def main() -> None:
    name, dictionary, *arguments = sys.argv[1:]
    target = targets.TARGETS[name]
    quoted = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in sorted(set(target.words())))
    Path(dictionary).write_text("".join(f'"{word}"\n' for word in quoted if word))
    options = {"custom_mutator": mutate_json} if target.is_json else {}
    atheris.Setup([sys.argv[0], f"-dict={dictionary}", *arguments], target.run, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

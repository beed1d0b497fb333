"""Tests over several seeds: `make test` plays the first, `make test-full` all."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(count: int) -> list[Any]:
    """Values of a parameter: 0, and for the slow tests 1 to `count` - 1."""
    return [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))]

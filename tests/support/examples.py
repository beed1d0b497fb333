"""How many examples Hypothesis tries of a test whose every example is dear."""

from __future__ import annotations

from hypothesis import settings


def examples(quick: int, full: int) -> settings:
    """`quick` in `make test`, which tries the same each time; `full` in `make test-full`, which looks for others."""
    return settings(max_examples=quick if settings.get_current_profile_name() == "ci" else full, deadline=None)

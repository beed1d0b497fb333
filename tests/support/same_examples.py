"""Hypothesis's own constants alone, so that a test's examples do not follow from what else its process has loaded."""

from __future__ import annotations

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

COLLECTS = "_get_local_constants"
"""The function of Hypothesis that collects the constants of all modules of this project that the process has loaded.
There is no setting for it. With `derandomize` too, one example in some draws them."""


def without_local_constants() -> None:
    """For the rest of this process. Raises where this version of Hypothesis collects them in another way."""
    if not callable(getattr(providers, COLLECTS, None)):
        raise RuntimeError(
            f"tests/support/same_examples.py: this version of Hypothesis has no {providers.__name__}.{COLLECTS}, which "
            "`make test` replaces to try the same examples each time; look there for what has taken its place"
        )
    none = Constants()
    setattr(providers, COLLECTS, lambda: none)

"""Our programs run on each Linux, also where the kernel offers no clock in its vDSO, as User Mode Linux does.

The C library then asks the kernel by a system call. A program that looks into the vDSO itself may end there.
"""

from __future__ import annotations

import pytest

from tests.support.paths import ROOT
from tools.setup_rust import RUST_BINARIES

LOOKED_FOR = (b"__vdso_clock_gettime", b"__kernel_clock_gettime")
"""The names of the clock in the vDSO of x86-64 and of arm64."""


@pytest.mark.parametrize("name", RUST_BINARIES)
def test_no_program_looks_for_the_clock_in_the_vdso(name: str) -> None:
    code = (ROOT / "target/release" / name).read_bytes()
    assert [word for word in LOOKED_FOR if word in code] == []

"""How a program of ours ends, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import ROOT

PROGRAM = """
import asyncio, os, signal
from asyncio.selector_events import BaseSelectorEventLoop
from slackwater.core import stopping

close = BaseSelectorEventLoop.close

def close_and_signal(loop):
    close(loop)
    os.kill(os.getpid(), signal.SIGTERM)

BaseSelectorEventLoop.close = close_and_signal

async def main():
    stop = stopping.stop_event()
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    return "ended"

print({run}(main()))
"""


def ended(run: str) -> subprocess.CompletedProcess[str]:
    """After a program that `run` runs was told to end a second time while it closed its loop."""
    program = PROGRAM.format(run=run)
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_second_signal_while_the_loop_is_closed_changes_nothing() -> None:
    done = ended("stopping.run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_without_it_python_prints_a_traceback() -> None:
    assert "signal wakeup fd" in ended("asyncio.run").stderr

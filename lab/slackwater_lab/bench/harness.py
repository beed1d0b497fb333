"""What all benchmarks share: options, the report and its tables, spreads, and what processes use."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slackwater.core.bus import nats_server
from slackwater_lab.cluster.balancer import free_port
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.machine import cpu_model
from slackwater_lab.cluster.paths import LabError, program
from slackwater_lab.cluster.signal_handlers import handlers
from slackwater_lab.cluster.spawn import Program

STOP_WITHIN_S = 30.0
Option = tuple[type, Any, str]
"""Type, default, help text; of type bool: a flag."""


@dataclass
class Report:
    """Lines of Markdown, printed as they come."""

    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Paragraphs of how it was measured, with which the report ends."""

    def add(self, text: str = "") -> None:
        print(text, flush=True)
        self.lines.append(text)

    def note(self, text: str) -> None:
        """A paragraph of how it was measured."""
        self.notes.append(text)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A Markdown table; a title without text is allowed."""
        for line in table(heads, rows):
            self.add(line)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    return [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """The median, and the range in brackets."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def machine() -> str:
    """Processor, cores, kernel, Python, load."""
    cpu = cpu_model(Path("/proc/cpuinfo").read_text())
    return (
        f"{os.cpu_count()} cores ({cpu}), Linux {platform.release()}, Python {platform.python_version()}, "
        f"load average at the start {os.getloadavg()[0]:.2f}"
    )


def options(doc: str, table: Mapping[str, Option]) -> argparse.ArgumentParser:
    """A parser with these options."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (kind, default, text) in table.items():
        if kind is bool:
            parser.add_argument(name, action="store_true", help=text)
            continue
        values = default if isinstance(default, list) else [default]
        shown = "" if default is None else f" (default {' '.join(map(str, values))})"
        nargs = "+" if isinstance(default, list) else None
        parser.add_argument(name, type=kind, default=default, nargs=nargs, help=text + shown)
    return parser


def run(
    title: str,
    doc: str,
    table: Mapping[str, Option],
    body: Callable[[Report, argparse.Namespace], None],
) -> int:
    """Runs a benchmark: its report ends with machine and command; `--write FILE` also writes it to a file.

    Gives the exit status.
    """
    write = {"--write": (Path, None, "also write the report into this document")}
    asked = options(doc, {**table, **write}).parse_args()
    report = Report()
    command = shlex.join(["python", "-m", f"slackwater_lab.bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    report.add(f"# {title}\n")
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    report.note(f"{began}; commit {commit() or 'unknown'}; `{command}`.")
    report.note(f"Machine: {machine()}.")
    try:
        # The first process of a PID namespace would ignore both.
        with handlers(signal.default_int_handler, signal.SIGINT, signal.SIGTERM):
            body(report, asked)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped before the end", file=sys.stderr)
        return 130
    report.add("\n## How it was measured\n")
    report.add("\n\n".join(report.notes))
    if asked.write:
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(report.lines))
        asked.write.write_text(text + "\n", encoding="utf-8")
    return 0


# --- programs and what they use


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that every user can read, as web servers must; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def background(folder: Path, name: str, *command: str, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A program that runs meanwhile; gives its pid. Ends it with SIGTERM; raises LabError when it ended by itself."""
    running = Program.start(name, command, folder / f"{name}.log", env)
    try:
        yield running.process.pid
        running.check()
    finally:
        running.stop(STOP_WITHIN_S)


@contextmanager
def broker(folder: Path) -> Iterator[tuple[str, int]]:
    """A nats-server that runs meanwhile; gives its address on loopback, and its pid."""
    port = free_port(0)
    listen = f"127.0.0.1:{port}"
    command = (program("nats-server"), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder))
    with background(folder, "nats-server", *command) as pid:
        nats_server.wait_until_it_answers(listen, folder / "nats-server.log")
        yield listen, pid


def memory_mib(pid: int) -> tuple[float, float]:
    """Memory of a process, resident and proportional: in the second a page that n processes share counts 1/n (proc(5),
    smaps_rollup). Raises LabError."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    rss, pss = (re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE) for name in ("Rss", "Pss"))
    if rss is None or pss is None:
        raise LabError(f"no memory figures of process {pid}")
    return int(rss[1]) / 1024, int(pss[1]) / 1024


@dataclass(frozen=True)
class Usage:
    """What a process used: seconds of wall clock and CPU, and what it printed."""

    wall_s: float
    cpu_s: float
    output: str


def measure(command: Sequence[str]) -> Usage:
    """Runs a command to its end and measures it alone (not its siblings). Raises LabError when it fails."""
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        raise LabError(f"`{shlex.join(command)}` failed with status {process.returncode}")
    return Usage(wall_s, usage.ru_utime + usage.ru_stime, text)


def peak_mib(command: Sequence[str]) -> float:
    """Runs a command; gives its peak of resident memory in MiB.

    The peak that `wait4` reports would hold this process's own too (a child starts as its copy), so it is read while
    the command runs; it never falls. Raises LabError.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    own = Path(f"/proc/{process.pid}")
    peak_kib = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            if (own / "exe").resolve().name == Path(command[0]).resolve().name:
                match = re.search(r"VmHWM:\s+(\d+)", (own / "status").read_text())
                peak_kib = max(peak_kib, int(match[1]) if match else 0)
        time.sleep(0.002)
    if process.returncode != 0 or peak_kib == 0:
        raise LabError(f"the memory of `{shlex.join(command)}` could not be measured")
    return peak_kib / 1024

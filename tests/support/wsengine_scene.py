"""A wsengine before played servers, and its state on disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.real_wsengine import Controller, Engine, Nats, make_keys


class Scene:
    """A controller, a bus, and an engine whose knob is the number in `threads.conf`, which stands at 4."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "threads.conf"
        self.file.write_text("# by hand\nthreads 4;\n")
        self.reloads = folder / "reloads"
        self.private, self.public = make_keys(folder)
        self.nats = Nats(folder / "nats")
        self.controller = Controller(self.nats.url, self.private)
        self.engine = Engine(folder, self.nats.url, self.public, self.sections())
        self.engine.start()

    def sections(self) -> str:
        reload = [sys.executable, "-c", f"open({str(self.reloads)!r}, 'a').write('x')"]
        return (
            f'[streaming]\nnum_threads = [1, 16]\nfile = "{self.file}"\ntemplate = "threads {{value}};"\n'
            f'test = ["grep", "-q", "^threads [0-9]*;$", "{self.file}"]\nreload = {json.dumps(reload)}\n'
            f'read = ["sed", "-n", "s/^threads \\\\([0-9]*\\\\);/\\\\1/p", "{self.file}"]\n'
            "reload_min_interval_s = 0.0\n"
        )

    def text(self) -> str:
        return self.file.read_text()

    def close(self) -> None:
        self.engine.close()
        self.controller.close()
        self.nats.stop()


BY_HAND = "# by hand\nthreads 4;\n"

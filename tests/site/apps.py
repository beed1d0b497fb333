"""The test site's applications: one table. Each is laid out in the files of a web server's machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slackwater_lab.cluster.applications import HERE as LAB_APPS
from slackwater_lab.cluster.applications import WIKI_PAGES, events_data, give_away, wiki_page
from slackwater_lab.cluster.paths import DEBIAN, program
from slackwater_lab.cluster.spawn import call

CPU_MS = 3.4
WAIT_MS = 150
MEASURED_TURNS = 200_000
ROOT = "var/www/html"
BURN = """\
<?php
// So many turns take {cpu_ms:g} ms of CPU on this machine, undisturbed.
$text = '';
for ($turn = 0; $turn < {turns}; $turn++) {{
    $text = md5($text . $turn);
}}
{more}echo "<html><body>$text</body></html>\\n";
"""
SWITCHED = """\
if (is_file('/var/www/slow')) {
    usleep(1000 * (int) file_get_contents('/var/www/slow'));
}
if (is_file('/var/www/fails')) {
    http_response_code(500);
}
"""
"""A story's database that is slow, and a deploy that went wrong: files that a story makes."""
MEASURE = """\
$best = INF;
for ($time = 0; $time < 3; $time++) {
    $before = getrusage();
    $text = '';
    for ($turn = 0; $turn < TURNS; $turn++) { $text = md5($text . $turn); }
    $after = getrusage();
    $took = 0;
    foreach (['utime', 'stime'] as $part) {
        $took += ($after["ru_$part.tv_sec"] - $before["ru_$part.tv_sec"]) * 1e3
            + ($after["ru_$part.tv_usec"] - $before["ru_$part.tv_usec"]) / 1e3;
    }
    $best = min($best, $took);
}
echo $best;
"""


@dataclass(frozen=True)
class App:
    """`lay_out(layer)` makes its files; `paths` are asked for in turn."""

    name: str
    lay_out: Callable[[Path], None]
    paths: tuple[str, ...]
    needs_fpm: bool = True


@cache
def _turns_per_ms() -> float:
    """How many turns of the loop take a millisecond of CPU."""
    took_ms = float(call([program("php8.2"), "-n", "-r", MEASURE.replace("TURNS", str(MEASURED_TURNS))]))
    return MEASURED_TURNS / took_ms


def _turns(cpu_ms: float) -> int:
    return round(_turns_per_ms() * cpu_ms)


def _burn(layer: Path) -> None:
    text = BURN.format(cpu_ms=CPU_MS, turns=_turns(CPU_MS), more=SWITCHED)
    (layer / ROOT / "index.php").write_text(text)


def _wait(layer: Path) -> None:
    text = BURN.format(cpu_ms=1, turns=_turns(1.0), more=f"usleep({WAIT_MS * 1000});\n")
    (layer / ROOT / "index.php").write_text(text)


def _events(layer: Path) -> None:
    shutil.copytree(LAB_APPS / "events", layer / ROOT, dirs_exist_ok=True)
    (layer / ROOT / "data.php").write_text(events_data())


def _dokuwiki(layer: Path) -> None:
    """Debian's package where it is, with pages in it; what its maintainer script asks, answered."""
    state = layer / "var/lib/dokuwiki"
    shutil.copytree(DEBIAN / "var/lib/dokuwiki/data", state / "data", symlinks=True)
    for number in range(WIKI_PAGES):
        (state / f"data/pages/page{number}.txt").write_text(wiki_page(number))
    give_away(state / "data")
    conf = layer / "etc/dokuwiki"
    conf.mkdir(parents=True)
    (conf / "local.php").write_text(
        "<?php\n$conf['title'] = 'Site';\n$conf['useacl'] = 0;\n$conf['updatecheck'] = 0;\n$conf['license'] = '';\n"
    )
    enabled = layer / "etc/apache2/conf-enabled"
    (enabled / "dokuwiki.conf").write_text(
        "Alias /dokuwiki /usr/share/dokuwiki\n"
        "<Directory /usr/share/dokuwiki>\n    Options FollowSymLinks\n    AllowOverride None\n"
        "    Require all granted\n</Directory>\n"
    )


def _static(layer: Path) -> None:
    """Debian's own first page, which is there."""


APPS = {
    app.name: app
    for app in (
        App("burn", _burn, ("/index.php",)),
        App("wait", _wait, ("/index.php",)),
        App("events", _events, tuple(f"/index.php?month={month}" for month in range(1, 13))),
        App("dokuwiki", _dokuwiki, tuple(f"/dokuwiki/doku.php?id=page{number}" for number in range(WIKI_PAGES))),
        App("static", _static, ("/index.html",), needs_fpm=False),
    )
}

"""The web applications of the lab: one table. Each is laid out below a host's folder and says what to ask it for."""

from __future__ import annotations

import os
import pwd
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.hosts import Host
from lab.paths import DEBIAN, LabError, debian_places
from lab.webserver import unprivileged_user

HERE = Path(__file__).resolve().parent / "apps"
EVENTS = 400
WIKI_PAGES = 12
VOCABULARY = """
river tide harbour market concert garden winter summer workshop lecture children music theatre bread bicycle
lantern museum history science film dance evening morning library open free talk walk run swim race
"""
WORDS = VOCABULARY.split()


@dataclass(frozen=True)
class Application:
    """`lay_out(host)` makes the files and gives the document root; `paths` are asked for in random order."""

    name: str
    lay_out: Callable[[Host], Path]
    paths: tuple[str, ...]
    rate_rps: float
    """The default load: three hosts of 0.4 core carry it well, two of them too."""


def events_data(seed: int = 1) -> str:
    """The events as a PHP file that returns an array, which opcache keeps in shared memory."""
    dice = random.Random(seed)
    rows = []
    for number in range(EVENTS):
        title = " ".join(dice.choice(WORDS) for _ in range(5)).capitalize()
        text = " ".join(dice.choice(WORDS) for _ in range(24))
        tags = ", ".join(str(dice.randrange(16)) for _ in range(5))
        rows.append(
            f"['id' => {number}, 'month' => {number % 12 + 1}, 'title' => '{title}', 'text' => '{text}', "
            f"'tags' => [{tags}], 'x' => {dice.randrange(100)}, 'y' => {dice.randrange(100)}, "
            f"'going' => {dice.randrange(500)}, 'time' => {1_700_000_000 + number * 7919}],"
        )
    return "<?php\nreturn [\n" + "\n".join(rows) + "\n];\n"


def lay_out_events(host: Host) -> Path:
    root = host.folder / "events"
    shutil.copytree(HERE / "events", root)
    (root / "data.php").write_text(events_data())
    return root


def wiki_page(number: int) -> str:
    """A page with headings, lists, a table and links, in DokuWiki's markup."""
    dice = random.Random(number)

    def sentence() -> str:
        return " ".join(dice.choice(WORDS) for _ in range(12)).capitalize() + "."

    parts = [f"====== Page {number} ======"]
    for section in range(6):
        parts += [f"===== {sentence()[:30]} {section} =====", " ".join(sentence() for _ in range(6))]
        parts += [f"  * [[page{dice.randrange(WIKI_PAGES)}]] **{sentence()}**" for _ in range(5)]
        parts += ["^ when ^ what ^ who ^", *(f"| {row} | {sentence()} | //{sentence()[:12]}// |" for row in range(4))]
    return "\n\n".join(parts[:1]) + "\n\n" + "\n".join(parts[1:]) + "\n"


def lay_out_dokuwiki(host: Host) -> Path:
    """Debian's package with its places in /etc, /var and /usr/share/php moved below the host's folder."""
    share, state = DEBIAN / "usr/share", DEBIAN / "var/lib/dokuwiki"
    if not (share / "dokuwiki/doku.php").exists():
        raise LabError(f"{share / 'dokuwiki'} is missing: run `make setup`")
    root, data, conf = host.folder / "dokuwiki", host.folder / "wiki-data", host.folder / "wiki-conf"

    def not_english(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name != "en"] if Path(folder).name == "lang" else []

    def links_and_languages(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if (Path(folder) / name).is_symlink()] + not_english(folder, names)

    shutil.copytree(share / "dokuwiki", root, ignore=links_and_languages)
    for part in ("plugins", "tpl"):
        shutil.copytree(state / "lib" / part, root / "lib" / part, ignore=links_and_languages)
    for library in ("php", "php-geshi"):
        for place in debian_places(f"usr/share/{library}"):
            shutil.copytree(place, host.folder / library, ignore=links_and_languages, dirs_exist_ok=True)
    shutil.copytree(DEBIAN / "etc/dokuwiki", conf, ignore=links_and_languages)
    shutil.copytree(state / "data", data, ignore=links_and_languages)
    for file in [*(root / "vendor/composer").glob("*.php"), root / "inc/load.php", root / "inc/parserutils.php"]:
        file.write_text(file.read_text().replace("'/usr/share/php", f"'{host.folder}/php"))
    (root / "inc/preload.php").write_text(
        f"<?php\nif (!defined('DOKU_CONF')) define('DOKU_CONF', '{conf}/');\n"
        "if (!defined('DOKU_FARM')) define('DOKU_FARM', false);\n"
    )
    (root / "install.php").unlink()
    (conf / "local.php").write_text(
        f"<?php\n$conf['title'] = 'Lab';\n$conf['useacl'] = 0;\n$conf['savedir'] = '{data}';\n"
        "$conf['updatecheck'] = 0;\n$conf['license'] = '';\n"
    )
    for number in range(WIKI_PAGES):
        (data / f"pages/page{number}.txt").write_text(wiki_page(number))
    owner = pwd.getpwnam(unprivileged_user()[0])
    for place in [data, *data.rglob("*"), conf, *conf.rglob("*")]:
        os.chown(place, owner.pw_uid, owner.pw_gid)
    return root


APPLICATIONS = {
    one.name: one
    for one in (
        Application("events", lay_out_events, tuple(f"/index.php?month={month}" for month in range(1, 13)), 250.0),
        Application(
            "dokuwiki", lay_out_dokuwiki, tuple(f"/doku.php?id=page{number}" for number in range(WIKI_PAGES)), 30.0
        ),
    )
}

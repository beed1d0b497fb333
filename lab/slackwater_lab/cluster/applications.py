"""The web applications of the lab: one table. Each is laid out below a host's folder and says what to ask it for."""

from __future__ import annotations

import os
import pwd
import random
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.hosts import Host, events_socket
from slackwater_lab.cluster.paths import DEBIAN, ROOT, LabError, debian_places, program
from slackwater_lab.cluster.spawn import call
from slackwater_lab.cluster.webserver import php_ini, unprivileged_user

HERE = Path(__file__).resolve().parent.parent / "apps"
HOT_FUNCTION = ROOT / "wsengine/examples/hot_function.php"
EVENTS = 400
KEYWORDS = (1, 1, 1, 2, 2, 4, 8, 16)
"""Number of keywords of the searches; most searches are short."""
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


def lay_out_search(host: Host) -> Path:
    """Also makes the folder of the socket for hot functions; the web server's user may write to it."""
    root = host.folder / "search"
    shutil.copytree(HERE / "search", root)
    shutil.copy(HOT_FUNCTION, root)
    (root / "socket.php").write_text(f"<?php\nreturn '{events_socket(host)}';\n")
    folder = events_socket(host).parent
    folder.mkdir()
    shutil.chown(folder, group=unprivileged_user()[1])
    folder.chmod(0o2750)
    return root


@dataclass(frozen=True)
class Markup:
    """How a wiki writes headings, a list's item with a link, and a table with its rows."""

    title: str
    section: str
    item: str
    head: str
    row: str
    end: tuple[str, ...] = ()


DOKUWIKI = Markup(
    title="====== Page {} ======\n",
    section="===== {} {} =====",
    item="  * [[page{}]] **{}**",
    head="^ when ^ what ^ who ^",
    row="| {} | {} | //{}// |",
)
MEDIAWIKI = Markup(
    title="= Page {} =",
    section="== {} {} ==",
    item="* [[Page{}]] '''{}'''",
    head='{| class="wikitable"\n! when !! what !! who',
    row="|-\n| {} || {} || ''{}''",
    end=("|}",),
)


def wiki_page(number: int, markup: Markup = DOKUWIKI) -> str:
    """A page with headings, lists, a table and links: the same words in every wiki."""
    dice = random.Random(number)

    def sentence() -> str:
        return " ".join(dice.choice(WORDS) for _ in range(12)).capitalize() + "."

    parts = [markup.title.format(number)]
    for section in range(6):
        parts += [markup.section.format(sentence()[:30], section), " ".join(sentence() for _ in range(6))]
        parts += [markup.item.format(dice.randrange(WIKI_PAGES), sentence()) for _ in range(5)]
        parts += [markup.head, *(markup.row.format(row, sentence(), sentence()[:12]) for row in range(4)), *markup.end]
    return "\n".join(parts) + "\n"


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
    give_away(data, conf)
    return root


def give_away(*folders: Path) -> None:
    """Gives folders and their content to the user that serves the pages."""
    owner = pwd.getpwnam(unprivileged_user()[0])
    for folder in folders:
        for place in [folder, *folder.rglob("*")]:
            os.chown(place, owner.pw_uid, owner.pw_gid)


def lay_out_mediawiki(host: Host) -> Path:
    """Debian's package without extensions, in English, installed and filled by its own scripts."""
    share = DEBIAN / "usr/share/mediawiki"
    if not (share / "index.php").exists():
        raise LabError(f"{share} is missing: run `make setup`")
    root, data, texts = host.folder / "mediawiki", host.folder / "wiki-data", host.folder / "wiki-texts"

    def not_needed(folder: str, names: list[str]) -> list[str]:
        if Path(folder) == share:
            return [name for name in names if (share / name).is_symlink() or name == "extensions-core"]
        translations = "i18n" in Path(folder).relative_to(share).parts
        return [name for name in names if translations and name.endswith(".json") and name != "en.json"]

    shutil.copytree(share, root, ignore=not_needed)
    for folder in (data, texts):
        folder.mkdir()
    places = root / "includes/PlatformSettings.php"
    text = places.read_text()
    for elsewhere in ("/var/cache/mediawiki", "/var/log/mediawiki"):
        text = text.replace(elsewhere, str(data))
    places.write_text(text)
    for number in range(WIKI_PAGES):
        (texts / f"Page{number}.txt").write_text(wiki_page(number, MEDIAWIKI))
    ini = texts / "php.ini"
    ini.write_text(php_ini(host))

    def script(name: str, *arguments: str) -> None:
        call([program("php8.2"), "-n", "-c", str(ini), str(root / "maintenance" / name), *arguments])

    script(
        *("install.php", "--dbtype", "sqlite", "--dbpath", str(data), "--dbname", "lab"),
        *("--server", f"http://{host.address}", "--scriptpath", "", "--skins", "Vector"),
        *("--pass", secrets.token_urlsafe(), "Lab", "Admin"),
    )
    with (root / "LocalSettings.php").open("a") as settings:
        settings.write("\n$wgMainCacheType = CACHE_ACCEL;\n$wgJobRunRate = 0;\n$wgEnableEmail = false;\n")
    script("importTextFiles.php", *map(str, sorted(texts.glob("*.txt"))))
    give_away(data)
    return root


APPLICATIONS = {
    application.name: application
    for application in (
        Application("events", lay_out_events, tuple(f"/index.php?month={month}" for month in range(1, 13)), 250.0),
        Application("search", lay_out_search, tuple(f"/index.php?keywords={number}" for number in KEYWORDS), 8.0),
        Application(
            "dokuwiki", lay_out_dokuwiki, tuple(f"/doku.php?id=page{number}" for number in range(WIKI_PAGES)), 30.0
        ),
        Application(
            "mediawiki",
            lay_out_mediawiki,
            tuple(f"/index.php?title=Page{number}" for number in range(WIKI_PAGES)),
            15.0,
        ),
    )
}

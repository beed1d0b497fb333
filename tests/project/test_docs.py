"""The documents: links lead somewhere, paths exist, the README is one page, and one name means one thing."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.*-]*)(?:::?\w+)?`")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
README_LINES = 120


@cache
def tracked() -> list[Path]:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in files.split("\0") if name and (ROOT / name).exists()]


def pages() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md" and "vendor" not in path.parts]


@cache
def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings; the second of the same name gets `-1`."""
    seen: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def test_a_block_of_toml_can_be_pasted() -> None:
    blocks = {
        (page, block)
        for page in pages()
        for block in re.findall(r"(?ms)^ *```toml\n(.*?)^ *```$", (ROOT / page).read_text(encoding="utf-8"))
    }
    assert len(blocks) > 10
    for page, block in blocks:
        try:
            tomllib.loads(block)
        except tomllib.TOMLDecodeError as error:
            raise AssertionError(f"{page}: {error}: {block}") from None


@pytest.mark.parametrize("page", pages(), ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        place = (ROOT / page.parent / target).resolve() if target else ROOT / page
        if not place.exists():
            broken.append(target)
        elif anchor and place.suffix == ".md" and anchor not in anchors(place.relative_to(ROOT)):
            broken.append(f"{target}#{anchor}")
    assert not broken


@pytest.mark.parametrize("page", pages(), ids=str)
def test_paths_of_the_repository_exist(page: Path) -> None:
    text = prose(page)
    if page.name == "CHANGELOG.md":
        return
    tops = {path.parts[0] for path in tracked() if len(path.parts) > 1}
    named = {name for name in PATH.findall(text) if name.split("/")[0] in tops}
    assert not sorted(name for name in named if not any(ROOT.glob(name.rstrip("/"))))


@pytest.mark.parametrize("page", pages(), ids=str)
def test_commands_exist(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    tests = re.findall(r"\b(tests/[\w/]+\.py)", text)
    names = re.findall(r"`python -m ((?:slackwater_lab|tools|tests)[\w.]+)", text)
    modules = [f"{name.replace('.', '/')}.py" for name in names]
    modules = [f"lab/{name}" if name.startswith("slackwater_lab/") else name for name in modules]
    missing = [name for name in tests + modules if not (ROOT / name).exists()]
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", text, re.MULTILINE))
    if page.name != "CHANGELOG.md":
        assert not missing
    assert not named - targets


def test_pages_that_the_code_names_exist() -> None:
    named = set()
    for path in tracked():
        if path.suffix in (".py", ".rs", ".toml", ".yml", ".html") or path.name == "Makefile":
            named |= set(re.findall(r"docs/[\w/-]+\.md", (ROOT / path).read_text(encoding="utf-8")))
    assert named
    assert not sorted(name for name in named if not (ROOT / name).exists())


@pytest.mark.parametrize("page", pages(), ids=str)
def test_no_merge_is_left_half_done(page: Path) -> None:
    assert not re.search(r"^(<{7}|>{7}) ", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for target, _ in LINK.findall(prose(page.relative_to(ROOT))):
            place = (page.parent / target).resolve() if target else page
            if place.is_dir():
                waiting += place.glob("*.md")
            elif place.suffix == ".md" and place.exists():
                waiting.append(place)
    documents = {ROOT / page for page in pages() if page.parts[0] == "docs"}
    assert not sorted(str(page) for page in documents - reached)


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("page", sorted((ROOT / "docs/decisions").glob("0*.md")), ids=lambda page: page.stem)
def test_a_decision_is_short(page: Path) -> None:
    """As docs/decisions/README.md says."""
    text = [line for line in page.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert len(text) <= 15


def test_commits_that_the_results_name_are_in_the_repository() -> None:
    hashes = {
        (page, word)
        for page in pages()
        if page.is_relative_to("docs/results")
        for word in re.findall(r"\b[0-9a-f]{7,8}\b", prose(page))
        if not word.isdigit() and re.search(r"\d", word)
    }
    assert hashes
    asked = "".join(f"{word}^{{commit}}\n" for _, word in sorted(hashes))
    shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if shallow.stdout.strip() == "true":
        pytest.skip("a shallow clone has few of its commits")
    check = ["git", "cat-file", "--batch-check"]
    answers = subprocess.run(check, cwd=ROOT, input=asked, capture_output=True, text=True, check=True).stdout
    absent = [where for where, answer in zip(sorted(hashes), answers.splitlines(), strict=True) if "missing" in answer]
    assert not absent


def test_each_term_of_the_glossary_is_explained_once() -> None:
    rows = re.findall(r"^\| (?!term \||---|use \|)([^|]+?) \|", prose(Path("docs/glossary.md")), re.MULTILINE)
    assert len(rows) > 60
    assert not [term for term, count in Counter(rows).items() if count > 1]


def test_classes_that_the_glossary_names_exist() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", prose(Path("docs/glossary.md"))))
    code = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in tracked() if path.suffix in (".py", ".rs"))
    assert named
    assert named <= set(re.findall(r"^(?:class|pub struct|pub enum) (\w+)", code, re.MULTILINE))


def test_the_site_has_every_page_of_its_chapters() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"([\w./-]+\.md)$", text.partition("\nnav:\n")[2], re.MULTILINE)
    assert len(set(named)) == len(named) > 30
    assert not [name for name in named if not (ROOT / name).exists()]
    chapters = ("docs/operations", "docs/reference", "docs/how-it-works")
    assert {str(page) for page in pages() if str(page.parent) in chapters} <= set(named)

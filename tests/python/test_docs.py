# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/: every link and every mention of a page leads to a file, every page is in the
index, prose is wrapped, and the architecture page has the checked include rules."""

import re
import subprocess
import sys

import pytest
from support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests/arrows"))
import check_arrows  # noqa: E402

LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"\bdocs/[\w/]+\.(?:md|svg)\b")
COLUMNS = 100


def tracked(*patterns):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"not a checkout: {found.stderr.strip()}")
    return [REPOSITORY / name for name in found.stdout.split() if (REPOSITORY / name).is_file()]


def pages():
    return tracked("docs/*.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def anchors(page):
    """The anchors that GitHub makes from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page):
    for link in LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield f"{page.relative_to(REPOSITORY)}: {link}"


def test_every_link_leads_somewhere():
    assert [dead for page in pages() for dead in dead_links(page)] == []


def test_every_mention_of_a_page_leads_to_it():
    suffixes = ("md", "h", "cpp", "cu", "c", "py", "pyi", "sh", "yaml", "toml", "cmake")
    sources = tracked(*(f"*.{suffix}" for suffix in suffixes))
    dead = [
        f"{source.relative_to(REPOSITORY)}: {name}"
        for source in sources
        for name in MENTION.findall(source.read_text(errors="replace"))
        if not (REPOSITORY / name).is_file()
    ]
    assert dead == []


def test_the_index_has_every_page():
    index = REPOSITORY / "docs/README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    assert {page for page in tracked("docs/*.md") if page != index} <= linked


def long_lines(page):
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        free = fenced or line.lstrip().startswith(("|", "#", "!["))
        if len(line) > COLUMNS and not free:
            yield f"{page.relative_to(REPOSITORY)}:{number}: {len(line)} columns"


def test_prose_wraps():
    wrapped = pages()
    assert [line for page in wrapped for line in long_lines(page)] == []


def test_the_architecture_page_has_the_arrows():
    page = (REPOSITORY / "docs/develop/architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)/` \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    shown = {folder: set(re.findall(r"`(\w+)`", may_use)) for folder, may_use in rows}
    assert shown == check_arrows.ROOM_MAY_SEE

# SPDX-License-Identifier: Apache-2.0
"""scripts/release.py in a repository of its own: a tree that is ready passes; each problem is
named, and nothing is written."""

import os
import re
import subprocess
import sys
import time
import zipfile

import pytest

from support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
import release  # noqa: E402

CHANGELOG = """# Changelog

## Unreleased

## 1.2.3 - 2026-01-02

### Added

- A thing.

## 1.2.2 - 2025-01-02

- Another.
"""


def wheel_of(path, version="1.2.3", changed=None):
    info = f"driftless-{version}.dist-info"
    files = {
        "driftless/__init__.py": b"# Driftless\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: driftless\nVersion: {version}\n".encode(),
        f"{info}/licenses/LICENSE": b"Apache License\n",
    }
    record = "".join(f"{name},{release.record_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    files.update(changed or {})
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


class Tree:
    def __init__(self, path):
        self.path = path
        self.git("init", "-q")
        self.git("config", "user.name", "nobody")
        self.git("config", "user.email", "nobody@example.invalid")
        (path / ".gitignore").write_text("build/\n")
        (path / "CMakeLists.txt").write_text("project(driftless VERSION 1.2.3 LANGUAGES CXX)\n")
        (path / "CHANGELOG.md").write_text(CHANGELOG)
        self.commit()
        self.wheels = path / "build/wheels/out"
        self.wheels.mkdir(parents=True)
        for python in ("cp311", "cp312", "cp313"):
            for processor in ("x86_64", "aarch64"):
                wheel_of(self.wheel(python, processor))

    def wheel(self, python="cp311", processor="x86_64"):
        return self.wheels / f"driftless-1.2.3-{python}-{python}-manylinux_2_34_{processor}.whl"

    def git(self, *words):
        line = ["git", "-C", self.path, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "a change")

    def release(self, *options):
        line = [REPOSITORY / "scripts/release.py", "--root", self.path, *options]
        return subprocess.run(line, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_the_version_stands_in_one_place():
    """All others are derived from it; pages that need a minor version name that one."""
    version = release.Release(REPOSITORY).version
    minor = version.rpartition(".")[0]
    listed = subprocess.run(["git", "-C", REPOSITORY, "ls-files"], capture_output=True, text=True)
    found, minors = [], set()
    for name in listed.stdout.splitlines():
        path = REPOSITORY / name
        if name == "CHANGELOG.md" or name.startswith("tests/golden/") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        found += [name] * len(re.findall(rf"driftless[^\n]*(?<![\d.]){re.escape(version)}(?![\d.])", text))
        minors |= set(re.findall(r"find_package\(driftless ([\d.]+)", text))
        minors |= set(re.findall(r"same minor version \(([\d.]+)\.x\)", text.replace("\n", " ")))
    assert found == ["CMakeLists.txt"] and minors == {minor}


def test_a_release_that_is_ready_gets_checksums_and_a_tag(tree):
    assert tree.release("--check").stdout == "release: 1.2.3 is ready\n"
    assert not tree.git("tag") and not (tree.path / "build/release").exists()
    for _ in range(2):  # a second run finds its own tag
        result = tree.release()
        assert result.returncode == 0 and "git push origin v1.2.3" in result.stdout, result.stderr
        assert tree.git("tag") == "v1.2.3\n"
    folder = tree.path / "build/release"
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert len(lines) == 7 and any(line.endswith("driftless-1.2.3.tar.gz") for line in lines)
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=folder, check=True)


def edit(tree, name, old, new):
    file = tree.path / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    tree.commit()
    for wheel in tree.wheels.iterdir():
        os.utime(wheel)


def late_commit(tree):
    for wheel in tree.wheels.iterdir():
        os.utime(wheel, (time.time() - 1000,) * 2)


def tagged_elsewhere(tree):
    tree.git("tag", "v1.2.3")
    edit(tree, "CHANGELOG.md", "- A thing.", "- Things.")


DEFECTS = {
    "uncommitted changes": lambda tree: (tree.path / "CHANGELOG.md").write_text(CHANGELOG + "\n"),
    "of another commit|is of [0-9a-f]{12}": tagged_elsewhere,
    "under Unreleased": lambda tree: edit(tree, "CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- More.\n"),
    "has no section": lambda tree: edit(tree, "CMakeLists.txt", "1.2.3", "1.3.0"),
    "has no date": lambda tree: edit(tree, "CHANGELOG.md", "2026-01-02", "soon"),
    "in the future": lambda tree: edit(tree, "CHANGELOG.md", "2026-01-02", "2999-01-02"),
    "is empty": lambda tree: edit(tree, "CHANGELOG.md", "- A thing.", "A thing."),
    "no wheel for cp313 on aarch64": lambda tree: tree.wheel("cp313", "aarch64").unlink(),
    "older than the commit": late_commit,
    "is not for manylinux": lambda tree: tree.wheel().rename(
        tree.wheels / "driftless-1.2.3-cp311-cp311-linux_x86_64.whl"),
    "manylinux_2_34 or older": lambda tree: tree.wheel().rename(
        tree.wheels / "driftless-1.2.3-cp311-cp311-manylinux_2_39_x86_64.whl"),
    "is not of version 1.2.3": lambda tree: (tree.wheels / tree.wheel().name.replace("1.2.3", "1.2.2"))
        .write_bytes(tree.wheel().read_bytes()),
    "is not as RECORD says": lambda tree: wheel_of(
        tree.wheel(), changed={"driftless/__init__.py": b"# other\n"}),
    "RECORD lists other files": lambda tree: wheel_of(tree.wheel(), changed={"driftless/more.py": b""}),
    "damaged": lambda tree: tree.wheel().write_bytes(tree.wheel().read_bytes()[:300]),
    "driftless_1.0.0_amd64.deb": lambda tree: (
        (tree.path / "build/packages").mkdir(),
        (tree.path / "build/packages/driftless_1.0.0_amd64.deb").write_bytes(b"")),
}  # fmt: skip


@pytest.mark.parametrize("problem", DEFECTS)
def test_a_problem_is_named_and_nothing_is_written(tree, problem):
    DEFECTS[problem](tree)
    tags = tree.git("tag")
    result = tree.release()
    assert result.returncode == 1 and re.search(problem, result.stderr), result.stderr
    assert tree.git("tag") == tags and not (tree.path / "build/release").exists()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what a release needs, then writes its archive, its checksums and its tag.

  scripts/release.py [--check] [--root DIR]

The version is that of project() in CMakeLists.txt. The checks, whose failures are reported together
(exit 1): the tree has no uncommitted change; CHANGELOG.md has a dated section of the version, and
nothing under "Unreleased"; no other commit has the tag vVERSION; build/wheels/out holds the
version's wheels for every Python and processor, each matches its RECORD and is newer than the
commit; the Debian packages in build/packages, if any, have the version.

Then build/release gets the source archive, the wheels, the packages and SHA256SUMS, and the commit
gets the tag. --check writes nothing.
"""

import argparse
import base64
import csv
import datetime
import hashlib
import io
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PYTHONS = ("cp311", "cp312", "cp313")
PROCESSORS = ("x86_64", "aarch64")
NEWEST_GLIBC = 34  # manylinux_2_34


class Release:
    def __init__(self, root):
        self.root = root
        self.problems = []
        found = re.search(r"^project\(driftless VERSION ([0-9.]+) ", self.text("CMakeLists.txt"), re.M)
        self.version = found.group(1) if found else ""
        if not found:
            self.problems.append("CMakeLists.txt: project(driftless VERSION ...) was not found")
        self.commit = self.git("rev-parse", "HEAD")
        self.tag = f"v{self.version}"
        self.wheels = sorted((root / "build/wheels/out").glob("*.whl"))
        self.packages = sorted((root / "build/packages").glob("*.deb"))

    def text(self, name):
        return (self.root / name).read_text()

    def git(self, *words):
        line = ["git", "-C", self.root, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    def check(self):
        self.check_tree()
        self.check_changelog()
        self.check_wheels()
        for package in self.packages:
            if package.name.split("_")[1:2] != [self.version]:
                self.problems.append(f"{package.name} is not of version {self.version}")

    def check_tree(self):
        if changes := self.git("status", "--porcelain"):
            self.problems.append(f"uncommitted changes: {len(changes.splitlines())} files; git status lists them")
        if self.git("tag", "--list", self.tag):
            tagged = self.git("rev-parse", f"{self.tag}^{{commit}}")
            if tagged != self.commit:
                self.problems.append(f"the tag {self.tag} is of {tagged[:12]}, not of {self.commit[:12]}: raise the version")

    def check_changelog(self):
        sections = re.split(r"^## ", self.text("CHANGELOG.md"), flags=re.M)[1:]
        entries = {}
        for section in sections:
            title, _, body = section.partition("\n")
            entries[title.strip()] = re.findall(r"^- ", body, re.M)
        if entries.get("Unreleased"):
            self.problems.append(f"CHANGELOG.md: move what is under Unreleased to '## {self.version} - DATE'")
        title = next((one for one in entries if one.split(" - ")[0] == self.version), None)
        if title is None:
            self.problems.append(f"CHANGELOG.md has no section '## {self.version} - DATE'")
            return
        try:
            dated = datetime.date.fromisoformat(title.partition(" - ")[2])
        except ValueError:
            self.problems.append(f"CHANGELOG.md: '## {title}' has no date YYYY-MM-DD")
            return
        if dated > datetime.datetime.now(datetime.UTC).date():
            self.problems.append(f"CHANGELOG.md: '## {title}' lies in the future")
        if not entries[title]:
            self.problems.append(f"CHANGELOG.md: '## {title}' is empty")

    def check_wheels(self):
        missing = {(python, processor) for python in PYTHONS for processor in PROCESSORS}
        committed = int(self.git("log", "-1", "--format=%ct"))
        for wheel in self.wheels:
            found = re.fullmatch(
                r"driftless-([^-]+)-(cp\d+)-\2-(?:manylinux_2_(\d+)|\w+?)_(x86_64|aarch64)"
                r"(?:\.manylinux\w+)*\.whl",
                wheel.name,
            )
            if not found or not found[3] or int(found[3]) > NEWEST_GLIBC:
                self.problems.append(f"{wheel.name} is not for manylinux_2_{NEWEST_GLIBC} or older")
                continue
            if found[1] != self.version:
                self.problems.append(f"{wheel.name} is not of version {self.version}")
                continue
            missing.discard((found[2], found[4]))
            if wheel.stat().st_mtime < committed:
                self.problems.append(f"{wheel.name} is older than the commit: make wheels")
            if reason := self.wrong_in(wheel):
                self.problems.append(f"{wheel.name}: {reason}")
        for python, processor in sorted(missing):
            self.problems.append(f"build/wheels/out has no wheel for {python} on {processor}: make wheels")

    def wrong_in(self, wheel):
        """Why the wheel does not match its RECORD or its name; None if it does."""
        info = f"driftless-{self.version}.dist-info"
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = {name for name in archive.namelist() if not name.endswith("/")}
                if f"\nVersion: {self.version}\n" not in archive.read(f"{info}/METADATA").decode():
                    return f"METADATA has another version than {self.version}"
                if not any(name.startswith(f"{info}/") and "LICENSE" in name for name in names):
                    return "it holds no licence"
                rows = list(csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())))
                if {row[0] for row in rows} != names:
                    return "RECORD lists other files"
                for name, digest, _ in rows:
                    if name != f"{info}/RECORD" and digest != record_digest(archive.read(name)):
                        return f"{name} is not as RECORD says"
        except (KeyError, ValueError, zipfile.BadZipFile, UnicodeDecodeError) as broken:
            return f"damaged: {broken}"
        return ""

    def write(self):
        folder = self.root / "build/release"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        name = f"driftless-{self.version}"
        archive = folder / f"{name}.tar.gz"
        self.git("archive", f"--prefix={name}/", "-o", str(archive), "HEAD")
        for file in (*self.wheels, *self.packages):
            shutil.copy2(file, folder)
        sums = [
            f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
            for file in sorted(folder.iterdir())
        ]
        (folder / "SHA256SUMS").write_text("".join(sums))
        if not self.git("tag", "--list", self.tag):
            self.git("tag", "-a", self.tag, "-m", f"Driftless {self.version}")
        return len(sums)


def record_digest(content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + digest.decode().rstrip("=")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, make no tag")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    arguments = parser.parse_args()
    release = Release(arguments.root)
    release.check()
    for problem in release.problems:
        print(f"release: {problem}", file=sys.stderr)
    if release.problems:
        return 1
    if arguments.check:
        print(f"release: {release.version} is ready")
        return 0
    files = release.write()
    print(f"release: build/release holds {files} files and SHA256SUMS; the commit has the tag {release.tag}")
    print(f"release: to publish it: git push origin {release.tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

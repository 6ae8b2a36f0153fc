#!/usr/bin/env python3
"""Checks or adds the licence line of every source file.

    scripts/spdx.py check    lists each file without it; exit status 1 if there is one
    scripts/spdx.py add      adds it to those files
"""

import pathlib
import subprocess
import sys

LINE = "SPDX-License-Identifier: Apache-2.0"
SLASHES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
HASHES = {".py", ".pyi", ".sh", ".cmake"}


def sources():
    names = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    for name in names.stdout.splitlines():
        path = pathlib.Path(name)
        if path.is_symlink() or "corpus" in path.parts:
            continue
        if path.suffix == ".c" or path.name == "driftless.h":  # C of any age
            yield path, f"/* {LINE} */\n"
        elif path.suffix in SLASHES:
            yield path, f"// {LINE}\n"
        elif path.suffix in HASHES or path.name == "CMakeLists.txt":
            yield path, f"# {LINE}\n"


def add(path, line):
    text = path.read_text(encoding="utf-8")
    first, _, rest = text.partition("\n")
    has_interpreter = first.startswith("#!")
    path.write_text(f"{first}\n{line}{rest}" if has_interpreter else line + text, encoding="utf-8")


def main():
    if sys.argv[1:] not in (["check"], ["add"]):
        sys.exit(__doc__)
    missing = 0
    for path, line in sources():
        if LINE in path.read_text(encoding="utf-8")[:300]:
            continue
        if sys.argv[1] == "add":
            add(path, line)
        else:
            print(f"{path}: expected '{line.strip()}' as its first line: run scripts/spdx.py add")
            missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The command `driftless`: `map` runs in Python, all other commands in the package's native
binary."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["map"]:
        from .megatron import map_command

        return int(map_command.main(arguments[1:]) or 0)
    native = Path(__file__).parent / "bin" / "driftless"
    if not native.exists():
        print(f"driftless: {native} is not in this package: it was built without CLI11",
              file=sys.stderr)
        return 1
    os.execv(native, ["driftless", *arguments])


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Runs all functions of a file of checks, or the named ones."""

import sys
import traceback
from types import FunctionType


def run_checks(found):
    checks = [
        name
        for name, value in found.items()
        if isinstance(value, FunctionType)
        and value.__module__ == found["__name__"]
        and not value.__code__.co_argcount  # functions with arguments are helpers
    ]
    failed = False
    for chosen in sys.argv[1:] or checks:
        try:
            found[chosen]()
            print(f"ok {chosen}", flush=True)
        except BaseException:
            failed = True
            print(f"failed {chosen}\n{traceback.format_exc()}", flush=True)
    sys.exit(1 if failed else 0)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Randomized cases: simulated fleets (build/bin/sim_night) and real processes (case.py).

    tests/night/night.py --simulated 10000 --real 300      as in `make test-night`
    tests/night/night.py --real-seeds 17..17 --keep DIR     repeats a case, and keeps its files

Prints the seeds, for each failed case a line with the command that repeats it, and the counts. Exit
0: no case failed."""

import argparse
import collections
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from case import CONTRACTS, Case, Wrong
from record import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))


def spans(text: str) -> list[int]:
    """ "3,7..9": 3, 7, 8 and 9."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def work_parent() -> str | None:
    """A directory in memory, if there is room: cases sync often."""
    memory = "/dev/shm"
    return (
        memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30 else None
    )


def run_case(seed: int, options, endpoint) -> tuple[Case | None, str | None]:
    """The case, and its failure or None."""
    work = Path(tempfile.mkdtemp(prefix=f"driftless-night-{seed}-", dir=work_parent()))
    contracts = dict.fromkeys(CONTRACTS, True) if options.contracts == "all" else CONTRACTS
    case, wrong, began = None, None, time.monotonic()
    try:
        case = Case(seed, work, endpoint, contracts)
        case.run()
    except Wrong as reason:
        wrong = str(reason)
    except Exception as reason:  # noqa: BLE001 - a defect of the harness is reported with its seed, too
        wrong = f"the harness failed: {type(reason).__name__}: {reason}"
    finally:
        if case:
            case.took = time.monotonic() - began
            case.clean_up()
        if options.keep:
            kept = Path(options.keep) / f"seed{seed}"
            pipes = shutil.ignore_patterns("ompi.*")
            shutil.copytree(work, kept, ignore=pipes, dirs_exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
    return case, wrong


def run_real(options, endpoint) -> int:
    seeds = options.real_seeds
    print(f"real: seeds {seeds[0]} to {seeds[-1]}, {options.jobs} at a time", flush=True)
    began, wrong = time.monotonic(), 0
    kinds, counts = collections.Counter(), collections.Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        for seed, (case, reason) in zip(
            seeds, pool.map(lambda s: run_case(s, options, endpoint), seeds)
        ):
            if case:
                kinds[case.road] += 1
                counts["claims"] += case.compared
                counts["killed"] += sum(p.killed for p in case.processes)
                counts["ended with 0"] += sum(p.popen.returncode == 0 for p in case.processes)
                counts["processes"] += len(case.processes)
            if reason is None:
                if options.verbose:
                    print(f"seed {seed}: {case}: held, {case.took:.0f} s", flush=True)
                continue
            wrong += 1
            more = (" --contracts all" if options.contracts == "all" else "") + (
                " --stores" if endpoint else ""
            )
            print(f"WRONG: real seed {seed} ({case}): {reason}")
            print(
                f"  repeat: tests/night/night.py --real-seeds {seed}..{seed}{more} --keep night",
                flush=True,
            )
    minutes = (time.monotonic() - began) / 60
    roads = ", ".join(f"{name} {count}" for name, count in sorted(kinds.items()))
    print(f"real: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    print(
        f"real: {len(seeds)} cases ({roads}), {len(seeds) / minutes:.0f} a minute: {wrong} wrong",
        flush=True,
    )
    return wrong + (counts["claims"] < len(seeds))  # cases without claims test nothing


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--simulated", type=int, default=0, help="number of simulated seeds")
    parser.add_argument("--real", type=int, default=0, help="number of cases with real processes")
    parser.add_argument("--first", type=int, default=1, help="first seed of both kinds")
    parser.add_argument("--real-seeds", type=spans, help="A..B,C: these seeds instead of --real")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--contracts", choices=("kept", "all"), default="kept", help="contracts of case.py to check"
    )
    parser.add_argument("--keep", help="copy every case's directory to DIR")
    parser.add_argument("--stores", action="store_true", help="also run over an object store")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    wrong = 0
    if options.simulated:
        last = options.first + options.simulated - 1
        line = [
            REPOSITORY / "build/bin/sim_night",
            "--seeds",
            f"{options.first}..{last}",
            "--jobs",
            str(options.jobs),
        ]
        line += ["--contracts", "all"] if options.contracts == "all" else []
        wrong += subprocess.run(line).returncode
    if options.real_seeds is None and options.real:
        options.real_seeds = [*range(options.first, options.first + options.real)]
    if options.real_seeds:
        with contextlib.ExitStack() as stack:
            endpoint = None
            if options.stores:
                import servers

                try:
                    endpoint = stack.enter_context(servers.serve("moto"))
                except servers.Unavailable as reason:
                    print(f"no object store: {reason}")
            wrong += run_real(options, endpoint)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

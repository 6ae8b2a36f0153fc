#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak anonymous memory of making and applying a delta, measured from outside the process.

    tests/bench/memory.py [--params N] [--dir DIR] [--command build/bin/driftless]

Makes a checkpoint and its successor (2 bytes per parameter each), publishes the delta in every encoding, applies it
to a copy, and samples RssAnon of the process every 5 ms. Prints one row per command.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

ENCODINGS = (("flush", "indices"), ("flush", "deltas"), ("flush", "deltas_zstd"),
             ("hf_delta", "xor"), ("hf_delta", "overwrite"))


def peak_anonymous_bytes(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak, start = 0, time.monotonic()
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            break
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        peak = max(peak, int(found[1]) * 1024 if found else 0)
        time.sleep(0.005)
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return peak, time.monotonic() - start


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=int, default=2_000_000_000)
    parser.add_argument("--dir", help="directory for about 12 GB of files (default: a temporary one)")
    parser.add_argument("--command", default=str(root / "build/bin/driftless"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        run, copy = f"{directory}/run", f"{directory}/copy"

        def show(name, *command):
            peak, seconds = peak_anonymous_bytes([arguments.command, *command])
            print(f"{name:24} {peak / 1e6:8.1f} MB {seconds:8.1f} s", flush=True)

        show("synth", "synth", "--out", run, "--params", str(arguments.params), "--steps", "1")
        shutil.copytree(f"{run}/step_000000", copy)
        for layout, encoding in ENCODINGS:
            published = f"{directory}/{encoding}"
            show(f"diff {encoding}", "diff", f"{run}/step_000000", f"{run}/step_000001", "--out", published,
                 "--layout", layout, "--encoding", encoding)
            show(f"apply {encoding}", "apply", published, "--to", copy)
            # Restores the base by the reverse delta: cheaper than another copy.
            back = f"{directory}/back_{encoding}"
            subprocess.run([arguments.command, "diff", f"{run}/step_000001", f"{run}/step_000000", "--out", back],
                           check=True, stdout=subprocess.DEVNULL)
            shutil.rmtree(f"{copy}/.weight_sync")
            subprocess.run([arguments.command, "apply", back, "--to", copy], check=True, stdout=subprocess.DEVNULL)
            shutil.rmtree(f"{copy}/.weight_sync")
            os.sync()
        show("verify", "verify", copy, "--like", f"{run}/step_000000")


if __name__ == "__main__":
    main()

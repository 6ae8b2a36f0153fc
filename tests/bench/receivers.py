#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of publishing for a trainer with 1, 2, 4 and 8 rollouts on one machine: a table in Markdown.

    receivers.py DRIFTLESS [--params N] [--steps N] [--interval-ms N]

Runs the main job under mpirun, over mpi_rma and shared_fs: the median of total_ms in the trainer's metrics,
without the first three versions.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROADS = {
    "mpi_rma": "encoding: deltas\nroad: {{ kind: mpi_rma, ring_size: 256MiB }}\n",
    "shared_fs": "encoding: deltas\nroad: {{ kind: shared_fs, shared_fs: {{ dir: '{dir}/road' }} }}\n",
}
COMMON = """threads: 1
anchors: {{ first: true }}
metrics: {{ file: '{dir}/{{role}}{{rank}}.jsonl' }}
"""
COUNTS = (1, 2, 4, 8)
WARM = 3


def publish_ms(driftless, road, rollouts, arguments):
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        config = directory / "job.yaml"
        config.write_text((ROADS[road] + COMMON).format(dir=directory), encoding="utf-8")
        mpirun = ["mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        mpirun += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        trainer = [driftless, "trainer", "--config", config, "--params", str(arguments.params),
                   "--steps", str(arguments.steps), "--interval-ms", str(arguments.interval_ms)]
        rollout = [driftless, "rollout", "--config", config]
        done = subprocess.run([*mpirun, "-n", "1", *trainer, ":", "-n", str(rollouts), *rollout],
                              text=True, capture_output=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{road}, {rollouts} rollouts: {done.stdout}{done.stderr}")
        lines = (directory / "trainer0.jsonl").read_text(encoding="utf-8").splitlines()
        return statistics.median(json.loads(line)["total_ms"] for line in lines[WARM:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driftless", type=pathlib.Path)
    parser.add_argument("--params", type=int, default=20_000_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--interval-ms", type=int, default=200)
    arguments = parser.parse_args()
    if shutil.which("mpirun") is None:
        sys.exit("needs mpirun")
    print("| road | " + " | ".join(f"{count}" for count in COUNTS) + " |")
    print("|---|" + "---|" * len(COUNTS))
    for road in ROADS:
        found = [publish_ms(arguments.driftless, road, count, arguments) for count in COUNTS]
        print(f"| `{road}` | " + " | ".join(f"{value:.1f} ms" for value in found) + " |", flush=True)


if __name__ == "__main__":
    main()

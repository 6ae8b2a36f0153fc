#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time of a sync between two hosts, by encoding and link: prints a table in Markdown.

    two_hosts.py DRIFTLESS --work DIR [--params N] [--links full 1gbit 100mbit 10mbit] [--encodings ...]

The hosts are network namespaces (tests/mpi/hosts.py; needs root). full, indices, deltas, deltas_zstd, compact
and auto use mpi_rma. xor and overwrite use shared_fs: the rollout's host has a directory of its own, and
mirror.py copies versions over the link. A sync lasts from the start of publishing until the rollout has
committed, by the monotonic clock that both share. Prints medians of the versions after the first; for auto,
after the third, because it has chosen its encoding by then. DIR keeps the run, which is made once.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parent / "mpi"))
from hosts import LARGE_SEGMENTS, NET, SKIPPED, UCX, Failed, Hosts, why_not  # noqa: E402

STEPS = 6
AUTO_TRIES = 3  # versions
LR = 5.5e-7  # changes 1 % of the weights
PORT = 8127
LINKS = {"full": None, "1gbit": 1e9 / 8, "100mbit": 1e8 / 8, "10mbit": 1e7 / 8}
BURSTS = {"1gbit": "1mb", "100mbit": "256kb", "10mbit": "64kb"}
BYTES_PER_CHANGE = {"indices": 6, "deltas": 4, "deltas_zstd": 3, "compact": 1, "auto": 4,
                    "xor": 2.2, "overwrite": 4.5}
DEADLINES = "deadlines: { publish: 5min, fetch: 10min, connect: 5min }\nthreads: 2\n"


def make_run(driftless, work, params):
    run = work / f"run_{params}_{STEPS}"
    if not run.exists():
        subprocess.run([driftless, "synth", "--out", run, "--params", str(params), "--steps",
                        str(STEPS), "--lr", str(LR)], check=True)
    return run


def configuration(directory, encoding, params):
    road = ""
    if encoding in ("xor", "overwrite"):
        road = (f"encoding: {encoding}\nroad:\n  kind: shared_fs\n  layout: hf_delta\n"
                f"  poll_longest: 50ms\n  shared_fs:\n    dir: {directory}/far\n    hook_timeout: 10min\n")
    elif encoding == "full":
        road = f"mode: full\nroad: {{ kind: mpi_rma, ring_size: {5 * params} }}\n"
    else:
        road = (f"encoding: {encoding}\n"
                f"road: {{ kind: mpi_rma, ring_size: {max(params, 1 << 24)} }}\n")
    path = directory / "job.yaml"
    path.write_text(road + DEADLINES + f"metrics: {{ file: '{directory}/{{role}}{{rank}}.jsonl' }}\n",
                    encoding="utf-8")
    return path


def interval_ms(encoding, link, params):
    """Milliseconds between versions, longer than a sync."""
    size = 2 * params if encoding == "full" else 0.012 * params * BYTES_PER_CHANGE[encoding]
    rate = min(LINKS[link] or 1e9, 4e8)
    coding = params / 1.2e8 if encoding in ("compact", "auto") else params / 2.5e8
    return int(1000 * (1.2 * size / rate + coding) + 500)


def versions_of(encoding, link):
    if encoding == "full" and link in ("100mbit", "10mbit"):
        return 1
    return STEPS if encoding == "auto" else STEPS - 2


def run_mpi(hosts, driftless, config, run, interval, steps):
    common = ["--config", config]
    job = hosts.start_apps(
        [*UCX, *LARGE_SEGMENTS],
        ([1], 1, [driftless, "trainer", *common, "--replay", run, "--steps", steps, "--interval-ms",
                  interval]),
        ([2], 1, [driftless, "rollout", *common, "--base", run / "step_000000"]))
    status = job.wait(600)
    if status != 0:
        raise Failed(f"mpirun ended with {status}\n{job.mpirun_text()}")


def run_files(hosts, driftless, config, run, interval, steps):
    """The trainer's directory is `near`, the rollout's is `far`."""
    near, far = hosts.directory / "near", hosts.directory / "far"
    near.mkdir()
    far.mkdir()
    hook = f"{sys.executable} -S {BENCH / 'mirror.py'} pull {NET}.1:{PORT}"
    rollout_config = hosts.directory / "rollout.yaml"
    text = config.read_text(encoding="utf-8")
    rollout_config.write_text(text.replace("shared_fs:\n", f"shared_fs:\n    before_read: {hook}\n"),
                              encoding="utf-8")
    config.write_text(text.replace(f"{far}", f"{near}"), encoding="utf-8")
    serving = subprocess.Popen(hosts.run_on(1, sys.executable, BENCH / "mirror.py", "serve", near, PORT))
    try:
        time.sleep(1)
        rollout = subprocess.Popen(hosts.run_on(
            2, driftless, "rollout", "--config", rollout_config, "--base", run / "step_000000",
            "--target-version", steps))
        trainer = hosts.run_on(1, driftless, "trainer", "--config", config, "--replay", run, "--steps",
                               steps, "--interval-ms", interval, "--rollouts", 0)
        done = subprocess.run(trainer, text=True, capture_output=True)
        if done.returncode != 0:
            raise Failed(f"the trainer ended with {done.returncode}\n{done.stdout}{done.stderr}")
        if rollout.wait(60) != 0:
            raise Failed(f"the rollout ended with {rollout.returncode}")
    finally:
        serving.kill()
        serving.wait()


def read_lines(path):
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["version"]: line for line in lines}


def measure(driftless, run, params, encoding, link):
    """Median seconds, bytes of a version, density."""
    steps = versions_of(encoding, link)
    with tempfile.TemporaryDirectory(dir=run.parent) as directory, Hosts(2, directory) as hosts:
        config = configuration(hosts.directory, encoding, params)
        if LINKS[link]:
            hosts.slow(1, link, BURSTS[link])
        way = run_files if encoding in ("xor", "overwrite") else run_mpi
        way(hosts, driftless, config, run, interval_ms(encoding, link, params), steps)
        trainer = read_lines(hosts.directory / "trainer0.jsonl")
        rollout = read_lines(hosts.directory / "rollout0.jsonl")
        received = hosts.received_bytes(2)
    first = AUTO_TRIES + 1 if encoding == "auto" else min(2, steps)
    chosen = range(first, steps + 1)
    seconds = []
    for version in chosen:
        if version not in rollout:
            raise Failed(f"{encoding}, {link}: version {version} was folded; the interval is short")
        begin = trainer[version]["monotonic_ms"] - trainer[version]["total_ms"]
        seconds.append((rollout[version]["monotonic_ms"] - begin) / 1e3)
    wire = statistics.median(trainer[version]["wire_bytes"] for version in chosen)
    if received < wire * steps * 0.9:
        raise Failed(f"{encoding}, {link}: only {received} bytes came over the link")
    parts = [statistics.median(lines[version][key] for version in chosen)
             for lines, key in ((trainer, "total_ms"), (rollout, "fetch_ms"), (rollout, "stage_ms"),
                                (rollout, "apply_ms"))]
    density = statistics.median(trainer[version]["density"] for version in chosen)
    used = ", ".join(trainer[version]["encoding"] for version in range(1, steps + 1))
    print(f"{encoding}, {link}: {wire / 1e6:.1f} MB, {[f'{s:.2f}' for s in seconds]} s ({used}), "
          f"density {density:.4f}; publish, fetch, stage, apply ms: {[f'{p:.0f}' for p in parts]}",
          file=sys.stderr, flush=True)
    return statistics.median(seconds), wire, density


def print_table(results, encodings, links):
    print("| encoding | MB on the wire | " + " | ".join(f"seconds at {link}" for link in links) + " |")
    print("|---|---|" + "---|" * len(links))
    for encoding in encodings:
        found = [results[encoding, link] for link in links]
        print(f"| `{encoding}` | {found[0][1] / 1e6:.1f} | "
              + " | ".join(f"{seconds:.2f}" for seconds, *_ in found) + " |")
    for link in links:
        best = min((each for each in encodings if each != "auto"),
                   key=lambda encoding: results[encoding, link][0], default="auto")
        share = results["auto", link][0] / results[best, link][0] if "auto" in encodings else None
        print(f"\nbest at {link}: {best}" + (f"; auto takes {share:.2f} of it" if share else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driftless", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--params", type=int, default=500_000_000)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["100mbit", "1gbit", "full"])
    parser.add_argument("--encodings", nargs="+",
                        default=["full", "indices", "deltas", "deltas_zstd", "compact", "auto", "xor",
                                 "overwrite"])
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return SKIPPED
    driftless = arguments.driftless.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    run = make_run(driftless, arguments.work.resolve(), arguments.params)
    results = {}
    for encoding in arguments.encodings:
        for link in arguments.links:
            results[encoding, link] = measure(driftless, run, arguments.params, encoding, link)
    print_table(results, arguments.encodings, arguments.links)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        sys.exit(1)

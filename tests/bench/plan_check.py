#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`driftless plan` beside real jobs on this machine: prints a table in Markdown.

    plan_check.py DRIFTLESS --work DIR [--params N...] [--links local 1gbit 100mbit] [--figures FILE]

A job is a trainer and a rollout, as in two_hosts.py: over mpi_rma between two hosts of network namespaces
with a slow link (root), or on this host (`local`) over mpi_rma and over files in DIR. The figures of the
processor are those of `driftless plan --measure` before and after the jobs (their geometric means), those
of local gets and files are measured here. A row is within its limit if predicted and measured time differ
by no more than 25 % where the wire takes most of the predicted time, and by a factor of 1.5 elsewhere.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH))
import two_hosts  # noqa: E402

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated",
          "--mca", "mpi_yield_when_idle", "0"]
LINKS = {"local": None, "1gbit": "1Gbit", "100mbit": "100Mbit", "10mbit": "10Mbit"}
ENCODINGS = {
    "10mbit": ["deltas", "compact"],
    "100mbit": ["full", "indices", "deltas", "deltas_zstd", "compact"],
    "1gbit": ["full", "deltas", "compact"],
    "local": ["full", "deltas", "compact"],
}
FILES = ["deltas", "deltas_zstd", "compact", "xor", "overwrite"]
WIRE, ELSEWHERE = 1.25, 1.5
POLL = "50ms"
SLACK_MS = 1500  # between versions: other work on the machine
STEPS = 4


def with_slack(interval_ms):
    return lambda encoding, link, params: 2 * interval_ms(encoding, link, params) + SLACK_MS


def ask(driftless, *arguments):
    done = subprocess.run([driftless, "plan", *map(str, arguments), "--json"], check=True, text=True,
                          capture_output=True)
    return json.loads(done.stdout)


def file_rates(directory):
    """Of DIR: bytes per second of a write and of a read through the cache, seconds of a sync."""
    size, data = 1 << 26, os.urandom(1 << 20)
    path = directory / "rate"
    writes, reads = [], []
    for _ in range(3):
        begin = time.monotonic()
        with open(path, "wb") as file:
            for _ in range(size >> 20):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        writes.append(size / (time.monotonic() - begin))
        begin = time.monotonic()
        path.read_bytes()
        reads.append(size / (time.monotonic() - begin))
    path.unlink()
    syncs = []
    for _ in range(9):
        with open(path, "wb") as file:
            file.write(data[:4096])
            begin = time.monotonic()
            os.fsync(file.fileno())
            syncs.append(time.monotonic() - begin)
        path.unlink()
    return {"shared_fs.write": statistics.median(writes), "shared_fs.read": statistics.median(reads),
            "shared_fs.sync": statistics.median(syncs), "wait.shared_fs": 0.025}


def run_local(driftless, run, params, road, encoding):
    """As two_hosts.measure(), on this host."""
    with tempfile.TemporaryDirectory(dir=run.parent) as name:
        directory = pathlib.Path(name)
        config = two_hosts.configuration(directory, encoding, params)
        if road == "shared_fs":
            layout = "hf_delta" if encoding in ("xor", "overwrite") else "frames"
            config.write_text(
                f"encoding: {encoding}\nroad:\n  kind: shared_fs\n  layout: {layout}\n"
                f"  poll_longest: {POLL}\n  shared_fs: {{ dir: '{directory}/road' }}\n"
                + two_hosts.DEADLINES
                + f"metrics: {{ file: '{directory}/{{role}}{{rank}}.jsonl' }}\n", encoding="utf-8")
        interval = two_hosts.interval_ms(encoding, "full", params)
        job = [*MPIRUN, "-n", "1", driftless, "trainer", "--config", config, "--replay", run, "--steps", STEPS,
               "--interval-ms", interval, ":", "-n", "1", driftless, "rollout", "--config", config, "--base",
               run / "step_000000"]
        done = subprocess.run(list(map(str, job)), text=True, capture_output=True)
        if done.returncode != 0:
            raise two_hosts.Failed(f"mpirun ended with {done.returncode}\n{done.stdout}{done.stderr}")
        trainer = two_hosts.read_lines(directory / "trainer0.jsonl")
        rollout = two_hosts.read_lines(directory / "rollout0.jsonl")
    seconds, phases = [], []
    for version in range(2, STEPS + 1):
        if version not in rollout:
            raise two_hosts.Failed(f"{encoding}: version {version} was folded; the interval is short")
        begin = trainer[version]["monotonic_ms"] - trainer[version]["total_ms"]
        seconds.append((rollout[version]["monotonic_ms"] - begin) / 1e3)
        phases.append([trainer[version]["total_ms"], *(rollout[version][key] for key in
                                                       ("fetch_ms", "stage_ms", "apply_ms"))])
    parts = [statistics.median(each) for each in zip(*phases)]
    print(f"{road}, {encoding}: {[f'{s:.2f}' for s in seconds]} s; publish, fetch, stage, apply ms: "
          f"{[f'{p:.0f}' for p in parts]}", file=sys.stderr, flush=True)
    density = statistics.median(trainer[v]["density"] for v in range(2, STEPS + 1))
    return statistics.median(seconds), trainer[STEPS]["wire_bytes"], density


def mean_figures(before, after):
    return {name: math.sqrt(max(before[name], 1e-15) * max(after[name], 1e-15)) for name in before}


def predict(driftless, figures, job, density, weights):
    params, link, road, encoding = job
    wire = [] if LINKS[link] is None else ["--link", LINKS[link], "--carrier", "tcp"]
    if LINKS[link] is None:
        wire = ["--link", "1000Gbit", "--carrier", "rdma"]
    found = ask(driftless, "--params", weights, "--device", "cpu", "--hand-over", "none", "--density", density,
                "--figures", figures, "--road", road, "--encoding", encoding, *wire)
    return found["plans"][0]


def print_table(rows):
    print("| weights | road | link | encoding | predicted, s | measured, s | ratio | wire decides | within |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (params, link, road, encoding), plan, measured in rows:
        ratio = plan["seconds"] / measured
        wire = plan["phases"]["fetch"] > plan["seconds"] / 2 and link != "local"
        within = max(ratio, 1 / ratio) <= (WIRE if wire else ELSEWHERE)
        print(f"| {params / 1e6:.0f} M | `{road}` | {link} | `{encoding}` | {plan['seconds']:.2f} | {measured:.2f} "
              f"| {ratio:.2f} | {'yes' if wire else 'no'} | {'yes' if within else 'no'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driftless", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--params", type=int, nargs="+", default=[50_000_000, 200_000_000])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["100mbit", "1gbit", "local"])
    parser.add_argument("--encodings", nargs="+", help="only these")
    arguments = parser.parse_args()
    driftless, work = arguments.driftless.resolve(), arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if two_hosts.why_not() is not None:
        print(f"without slow links: {two_hosts.why_not()}", file=sys.stderr)
        arguments.links = ["local"]
    two_hosts.interval_ms = with_slack(two_hosts.interval_ms)
    rows = []
    for params in arguments.params:
        run = two_hosts.make_run(driftless, work, params)
        weights = sum(path.stat().st_size for path in (run / "step_000000").glob("*.safetensors")) // 2
        size = ["--measure", "--bytes", 2 * weights, "--threads", 2]
        before, found = ask(driftless, *size), []
        for link in arguments.links:
            jobs = [("mpi_rma", encoding) for encoding in ENCODINGS[link]]
            jobs += [("shared_fs", encoding) for encoding in FILES if link == "local"]
            for road, encoding in jobs:
                if arguments.encodings and encoding not in arguments.encodings:
                    continue
                try:
                    measured = (run_local(driftless, run, params, road, encoding) if link == "local" else
                                two_hosts.measure(driftless, run, params, encoding, link))
                except two_hosts.Failed as failure:
                    print(f"left out: {link}, {road}, {encoding}: {failure}", file=sys.stderr)
                    continue
                found.append(((params, link, road, encoding), measured))
        figures = mean_figures(before, ask(driftless, *size))
        figures.update(file_rates(work))
        path = work / "figures.json"
        path.write_text(json.dumps(figures), encoding="utf-8")
        print(json.dumps(figures), file=sys.stderr)
        for job, (seconds, wire, density) in found:
            plan = predict(driftless, path, job, density, weights)
            print(f"{job}: predicted {plan['seconds']:.2f} {plan['phases']}, "
                  f"{plan['bytes']['version'] / 1e6:.1f} of {wire / 1e6:.1f} MB", file=sys.stderr)
            rows.append((job, plan, seconds))
    print_table(rows)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except two_hosts.Failed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        sys.exit(1)

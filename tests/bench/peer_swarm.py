#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bytes that a trainer on a slow link sends over the peer road to 1 and to 8 rollouts: a table in Markdown.

    peer_swarm.py DRIFTLESS --work DIR [--params N] [--versions N] [--rollouts 1 8] [--link 100mbit] [--keep 1GiB]

Each process runs on a host of its own, a network namespace (tests/mpi/hosts.py; needs root). The trainer's host
sends at the rate of --link; the links of the rollouts are not limited. Every version is a full one. Bytes are
those that the interface of the trainer's host sent since the first rollout's start. Seconds: the median over
the versions of the time from the start of publishing until the last rollout has committed.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parent / "mpi"))
from hosts import NET, SKIPPED, Failed, Hosts, call, why_not  # noqa: E402

BURSTS = {"1gbit": "1mb", "100mbit": "256kb", "10mbit": "64kb"}
RATES = {"1gbit": 1e9 / 8, "100mbit": 1e8 / 8, "10mbit": 1e7 / 8}
CONFIG = """mode: full
hub: {{ address: "{net}.1:27315", token_file: "{token}" }}
road: {{ kind: peer, ring_size: 4GiB, peer: {{ keep: {keep} }} }}
deadlines: {{ publish: 5min, fetch: 10min, connect: 5min }}
threads: 1
metrics: {{ file: '{directory}/NAME.jsonl' }}
"""


def make_run(driftless, work, params, versions):
    run = work / f"run_{params}_{versions}"
    if not run.exists():
        subprocess.run([driftless, "synth", "--out", run, "--params", str(params), "--steps",
                        str(versions)], check=True)
    return run


def sent_bytes(hosts, i):
    done = call("ip", "-n", f"{hosts.tag}{i}", "-j", "-s", "link", "show", "eth0")
    return json.loads(done.stdout)[0]["stats64"]["tx"]["bytes"]


def read_lines(path):
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["version"]: line for line in lines}


def measure(arguments, run, count):
    """Bytes that the trainer sent, bytes of the versions, median seconds."""
    with tempfile.TemporaryDirectory(dir=run.parent) as name, Hosts(count + 1, name) as hosts:
        directory = pathlib.Path(name)
        token = directory / "token"
        token.touch(mode=0o600)
        token.write_text("0123456789abcdef0123456789abcdef\n", encoding="utf-8")

        def config(who):
            path = directory / f"{who}.yaml"
            text = CONFIG.format(net=NET, token=token, keep=arguments.keep, directory=directory)
            path.write_text(text.replace("NAME", who), encoding="utf-8")
            return path

        hosts.slow(1, arguments.link, BURSTS[arguments.link])
        seconds = 2 * arguments.params / RATES[arguments.link]
        before = sent_bytes(hosts, 1)
        rollouts = [subprocess.Popen(hosts.run_on(
            2 + i, arguments.driftless, "rollout", "--config", config(f"rollout{i}"), "--base",
            run / "step_000000"), stdout=subprocess.DEVNULL) for i in range(count)]
        trainer = hosts.run_on(1, arguments.driftless, "trainer", "--config", config("trainer"),
                               "--replay", run, "--steps", arguments.versions, "--rollouts", count,
                               "--interval-ms", int(1000 * (1.5 * seconds + 2)))
        done = subprocess.run(trainer, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise Failed(f"the trainer ended with {done.returncode}\n{done.stdout}{done.stderr}")
        for rollout in rollouts:
            if rollout.wait(120) != 0:
                raise Failed(f"a rollout ended with {rollout.returncode}")
        sent = sent_bytes(hosts, 1) - before
        published = read_lines(directory / "trainer.jsonl")
        committed = [read_lines(directory / f"rollout{i}.jsonl") for i in range(count)]
    times, size = [], 0
    for version, line in published.items():
        size += line["wire_bytes"]
        begin = line["monotonic_ms"] - line["total_ms"]
        times.append(max(lines[version]["monotonic_ms"] for lines in committed) - begin)
    return sent, size, statistics.median(times) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driftless", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--params", type=int, default=20_000_000)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--link", choices=RATES, default="100mbit")
    parser.add_argument("--keep", default="1GiB")
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return SKIPPED
    arguments.driftless = arguments.driftless.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    run = make_run(arguments.driftless, arguments.work.resolve(), arguments.params, arguments.versions)
    print("| rollouts | MB of versions | MB that the trainer sent | of those for the first | seconds |")
    print("|---|---|---|---|---|")
    first = None
    for count in arguments.rollouts:
        sent, size, seconds = measure(arguments, run, count)
        first = first or sent
        print(f"| {count} | {size / 1e6:.1f} | {sent / 1e6:.1f} | {sent / first:.2f} | {seconds:.2f} |",
              flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        sys.exit(1)

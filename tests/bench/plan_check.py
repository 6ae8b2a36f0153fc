#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `driftless plan` with real jobs on this machine: prints a table in Markdown.

    plan_check.py DRIFTLESS --work DIR [--params N...] [--links local 1gbit 100mbit] [--roads peer ...]

A job is a trainer and a rollout, as in two_hosts.py: over mpi_rma or peer between two hosts of network namespaces
with a slow link (needs root), or on this host (`local`) over mpi_rma, peer (shared memory) and files in DIR. In
some jobs over peer and files the trainer quantizes to FP8 blocks. All jobs run --rounds times. The processor's figures come from
`driftless plan --measure`, which runs before the jobs, after them, and after every few of them: other programs then
slow down both alike. Figures and times are medians. Figures of local gets and files are measured here. A row is
within its limit if predicted and measured time differ by at most 25 % when the wire takes most of the predicted
time, and by a factor of at most 1.5 otherwise.
"""
import argparse
import json
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
FP8 = {"shared_fs": ["deltas", "compact", "xor"], "peer": ["full", "deltas", "compact"]}
ROADS = ("mpi_rma", "peer", "shared_fs")
PORT = 27316
WIRE, ELSEWHERE = 1.25, 1.5
POLL_MS = 10  # of peer and shared_fs: longer polls make three versions a matter of chance
SLACK_MS = 1500  # between versions, for other work on the machine
STEPS = 4
JOBS_PER_CALIBRATION = 4
SYNCS = 7  # of a version in files


def with_slack(interval_ms, slack_ms):
    """Intervals of a third of a poll more than whole polls, so that versions do not all wait equally long."""
    def interval(encoding, link, params):
        total = 2 * interval_ms(encoding, link, params) + slack_ms
        return total - total % POLL_MS + POLL_MS // 3
    return interval


def ask(driftless, *arguments):
    done = subprocess.run([driftless, "plan", *map(str, arguments), "--json"], check=True, text=True,
                          capture_output=True)
    return json.loads(done.stdout)


def file_rates(directory):
    """DIR's bytes per second of a write and of a read through the page cache; seconds of a sync."""
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
    syncs = [small_version(directory, i) / SYNCS for i in range(9)]
    return {"shared_fs.write": statistics.median(writes), "shared_fs.read": statistics.median(reads),
            "shared_fs.sync": statistics.median(syncs),
            "wait.shared_fs": POLL_MS / 2e3, "wait.peer": POLL_MS / 2e3}


def sync_of(path):
    """Seconds of syncing a directory, or a new file of 4 KiB."""
    begin = time.monotonic()
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_CREAT | os.O_WRONLY)
    if not path.is_dir():
        os.write(file, bytes(4096))
    os.fsync(file)
    os.close(file)
    return time.monotonic() - begin


def small_version(directory, number):
    """Seconds of the syncs with which shared_fs makes a version of small files durable and visible."""
    hidden, visible = directory / f".rate_{number}", directory / f"rate_{number}"
    hidden.mkdir()
    seconds = sync_of(hidden / "part") + sync_of(hidden)
    seconds += sync_of(hidden / "manifest.json") + sync_of(hidden / "DONE") + sync_of(hidden)
    used = directory / ".rate_used"
    used.touch()
    seconds += sync_of(directory)
    hidden.rename(visible)
    seconds += sync_of(directory)
    used.unlink()
    for file in visible.iterdir():
        file.unlink()
    visible.rmdir()
    return seconds


def configuration(directory, params, road, encoding, address):
    if road == "mpi_rma":
        return two_hosts.configuration(directory, encoding, params)
    mode = "mode: full\n" if encoding == "full" else f"encoding: {encoding}\n"
    if road == "shared_fs":
        layout = "hf_delta" if encoding in ("xor", "overwrite") else "frames"
        mode += (f"road:\n  kind: shared_fs\n  layout: {layout}\n  poll_longest: {POLL_MS}ms\n"
                 f"  shared_fs: {{ dir: '{directory}/road' }}\n")
    else:
        token = directory / "token"
        token.write_text("0123456789abcdef" * 2, encoding="utf-8")
        token.chmod(0o600)
        mode += (f"hub: {{ address: '{address}:{PORT}', token_file: '{token}' }}\n"
                 f"road: {{ kind: peer, ring_size: {5 * params}, poll_longest: {POLL_MS}ms }}\n")
    path = directory / "job.yaml"
    path.write_text(mode + two_hosts.DEADLINES + f"metrics: {{ file: '{directory}/{{role}}{{rank}}.jsonl' }}\n",
                    encoding="utf-8")
    return path


def run_local(driftless, run, base, params, road, encoding):
    """As two_hosts.measure(), on this host."""
    with tempfile.TemporaryDirectory(dir=run.parent) as name:
        directory = pathlib.Path(name)
        config = configuration(directory, params, road, encoding, "127.0.0.1")
        interval = two_hosts.interval_ms(encoding, "full", params)
        trainer = [driftless, "trainer", "--config", config, "--replay", run, "--base", base, "--steps", STEPS,
                   "--interval-ms", interval]
        rollout = [driftless, "rollout", "--config", config, "--base", base]
        if road == "mpi_rma":
            run_all([*MPIRUN, "-n", "1", *trainer, ":", "-n", "1", *rollout])
        else:
            run_all([*trainer, "--rollouts", 1], [*rollout, "--target-version", STEPS])
        return times_of(directory, STEPS, f"{road}, {encoding}")


def run_all(*commands):
    """Runs the first command, and the others beside it."""
    started = [subprocess.Popen(list(map(str, line)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
               for line in reversed(commands)]
    try:
        for process in reversed(started):
            output, _ = process.communicate(timeout=600)
            if process.returncode != 0:
                raise two_hosts.Failed(f"{process.args} ended with {process.returncode}\n{output}")
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_over_link(driftless, run, base, params, encoding, link):
    """Over peer, between two hosts."""
    steps = two_hosts.versions_of(encoding, link)
    with tempfile.TemporaryDirectory(dir=run.parent) as name, two_hosts.Hosts(2, name) as hosts:
        config = configuration(hosts.directory, params, "peer", encoding, f"{two_hosts.NET}.1")
        hosts.slow(1, link, two_hosts.BURSTS[link])
        interval = two_hosts.interval_ms(encoding, link, params)
        run_all(hosts.run_on(1, driftless, "trainer", "--config", config, "--replay", run, "--base", base,
                             "--steps", steps, "--interval-ms", interval, "--rollouts", 1),
                hosts.run_on(2, driftless, "rollout", "--config", config, "--base", base,
                             "--target-version", steps))
        return times_of(hosts.directory, steps, f"peer, {encoding}, {link}")


def times_of(directory, steps, what):
    """Median seconds of the versions after the first; bytes, density and changes of one."""
    trainer = two_hosts.read_lines(directory / "trainer0.jsonl")
    rollout = two_hosts.read_lines(directory / "rollout0.jsonl")
    seconds, phases = [], []
    chosen = range(min(2, steps), steps + 1)
    for version in chosen:
        if version not in rollout:
            raise two_hosts.Failed(f"{what}: version {version} was folded; the interval is short")
        begin = trainer[version]["monotonic_ms"] - trainer[version]["total_ms"]
        seconds.append((rollout[version]["monotonic_ms"] - begin) / 1e3)
        phases.append([trainer[version].get(key, 0) for key in ("compare_ms", "encode_ms", "send_ms", "seal_ms", "total_ms")]
                      + [rollout[version][key] for key in ("fetch_ms", "stage_ms", "apply_ms")])
    parts = [statistics.median(each) for each in zip(*phases)]
    print(f"{what}: {[f'{s:.2f}' for s in seconds]} s; compare, encode, send, seal, all of publish; fetch, stage, "
          f"apply ms: {[f'{p:.0f}' for p in parts]}", file=sys.stderr, flush=True)
    density = statistics.median(trainer[v]["density"] for v in chosen)
    changed = statistics.median(trainer[v]["changed_units"] for v in chosen)
    return statistics.median(seconds), trainer[steps]["wire_bytes"], density, changed


def medians(lines):
    """The median of each figure, over dicts of the same names."""
    return {name: statistics.median(line[name] for line in lines) for name in lines[0]}


def median_job(found):
    """Of a job's rounds: (seconds, bytes, density[, changes])."""
    return tuple(statistics.median(each) for each in zip(*found))


def predict(driftless, figures, job, density, weights, fp8_changed=None):
    """`density`: of the bf16 weights. `fp8_changed`: changed codes per changed weight in the job."""
    params, link, road, encoding, precision = job
    wire = [] if LINKS[link] is None else ["--link", LINKS[link], "--carrier", "tcp"]
    if LINKS[link] is None:
        wire = ["--link", "1000Gbit", "--carrier", "rdma"]
    if link == "local" and road == "peer":  # by shared memory
        wire += ["--figure", "peer.get_tcp=1e15"]
    line = ["--params", weights, "--device", "cpu", "--hand-over", "none", "--density", density,
            "--figures", figures, "--road", road, "--encoding", encoding, "--precision", precision, *wire]
    if fp8_changed is not None:
        line += ["--figure", f"fp8.changed={fp8_changed}"]
    return ask(driftless, *line)["plans"][0]


def changes_of(driftless, run):
    """Changes of the second step in bf16: the share of all weights, and the number per tensor."""
    done = subprocess.run([driftless, "compare", run / "step_000001", run / "step_000002", "--json"], check=True,
                          text=True, capture_output=True)
    found = json.loads(done.stdout)
    return found["changed_units"] / found["total_units"], {
        each["tensor"]: each["changed_units"] for each in found["changed"]}


def tensors_of(checkpoint):
    names = set()
    for path in checkpoint.glob("*.safetensors"):
        with open(path, "rb") as file:
            names |= json.loads(file.read(int.from_bytes(file.read(8), "little"))).keys()
    return names


def fp8_changed_of(base, changes, changed):
    """Changed codes per changed weight. `changed`: all changes of a version: codes, scales, and weights that the FP8
    base leaves in bf16."""
    names = tensors_of(base)
    quantized = sum(count for name, count in changes.items() if f"{name}_scale_inv" in names)
    return (changed - (sum(changes.values()) - quantized)) / quantized


def print_table(rows):
    print("| weights | road | link | encoding | precision | predicted, s | measured, s | ratio | wire decides "
          "| within |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (params, link, road, encoding, precision), plan, measured in rows:
        ratio = plan["seconds"] / measured
        wire = plan["phases"]["fetch"] > plan["seconds"] / 2 and link != "local"
        within = max(ratio, 1 / ratio) <= (WIRE if wire else ELSEWHERE)
        print(f"| {params / 1e6:.0f} M | `{road}` | {link} | `{encoding}` | {precision} "
              f"| {plan['seconds']:.2f} | {measured:.2f} | {ratio:.2f} | {'yes' if wire else 'no'} | {'yes' if within else 'no'} |")


def jobs_of(params, arguments):
    for link in arguments.links:
        jobs = [(road, encoding, "bf16") for road in ("mpi_rma", "peer") for encoding in ENCODINGS[link]]
        if link == "local":
            jobs += [("shared_fs", encoding, "bf16") for encoding in FILES]
        jobs += [(road, encoding, "fp8") for road, encodings in FP8.items() for encoding in encodings
                 if link == "local" or road == "peer"]
        for road, encoding, precision in jobs:
            wanted = not arguments.encodings or encoding in arguments.encodings
            if wanted and road in arguments.roads and precision in arguments.precisions:
                yield params, link, road, encoding, precision


def fp8_base(run):
    return run.parent / f"{run.name}_fp8"


def measure(driftless, run, job):
    params, link, road, encoding, precision = job
    base = run / "step_000000"
    if precision == "fp8":
        base = fp8_base(run)
        if not base.exists():
            subprocess.run([driftless, "quantize", run / "step_000000", base], check=True, stdout=sys.stderr)
    if link != "local" and road == "peer":
        return run_over_link(driftless, run, base, params, encoding, link)
    if link != "local":
        return two_hosts.measure(driftless, run, params, encoding, link)
    return run_local(driftless, run, base, params, road, encoding)


def run_jobs(driftless, work, run, jobs, run_bytes):
    """{job: its rounds}, and the figures measured between the jobs."""
    found, calibrations = {}, []

    def calibrate():
        processor = ask(driftless, "--measure", "--bytes", run_bytes, "--threads", 2)
        calibrations.append(processor | file_rates(work))

    for i, job in enumerate(jobs):
        if i % JOBS_PER_CALIBRATION == 0:
            calibrate()
        try:
            found.setdefault(job, []).append(measure(driftless, run, job))
        except two_hosts.Failed as failure:
            print(f"left out: {job}: {failure}", file=sys.stderr)
    calibrate()
    for name in ("compare.host", "quantize", "encode.compact", "hash"):
        values = sorted(line[name] for line in calibrations)
        print(f"{name}: {values[0]:.3g} to {values[-1]:.3g}, {len(values)} times", file=sys.stderr)
    return found, medians(calibrations)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driftless", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--params", type=int, nargs="+", default=[50_000_000, 200_000_000])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=["100mbit", "1gbit", "local"])
    parser.add_argument("--encodings", nargs="+", help="only these")
    parser.add_argument("--roads", nargs="+", choices=ROADS, default=ROADS)
    parser.add_argument("--rounds", type=int, default=1, help="how often each job runs (%(default)s)")
    parser.add_argument("--slack-ms", type=int, default=SLACK_MS,
                        help="between versions; less is enough on an idle machine (%(default)s)")
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "fp8"], default=["bf16", "fp8"])
    arguments = parser.parse_args()
    driftless, work = arguments.driftless.resolve(), arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if two_hosts.why_not() is not None:
        print(f"without slow links: {two_hosts.why_not()}", file=sys.stderr)
        arguments.links = ["local"]
    two_hosts.interval_ms = with_slack(two_hosts.interval_ms, arguments.slack_ms)
    rows = []
    for params in arguments.params:
        run = two_hosts.make_run(driftless, work, params)
        weights = sum(path.stat().st_size for path in (run / "step_000000").glob("*.safetensors")) // 2
        jobs = list(jobs_of(params, arguments)) * arguments.rounds
        found, figures = run_jobs(driftless, work, run, jobs, 2 * weights)
        path = work / "figures.json"
        path.write_text(json.dumps(figures), encoding="utf-8")
        print(json.dumps(figures), file=sys.stderr)
        plain, changes = changes_of(driftless, run)
        for job, rounds in found.items():
            seconds, wire, density, *changed = median_job(rounds)
            share = None
            if job[-1] == "fp8":
                density = plain
                if job[3] != "full":
                    share = fp8_changed_of(fp8_base(run), changes, *changed)
            plan = predict(driftless, path, job, density, weights, share)
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

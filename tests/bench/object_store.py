#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the object_store road with `rclone copy`, against `rclone serve s3` on this machine:

    tests/bench/object_store.py [MIB]        default: 1024 MiB

Prints the times to upload and download MIB, the times of rclone with as many streams, the peak memory of
both sides, and the sequence of requests that publishes a delta."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import servers  # noqa: E402
from faulty_proxy import FaultyProxy  # noqa: E402

BENCH = REPOSITORY / "build/bin/object_store_bench"
STREAMS = 8


def bench(what, endpoint, prefix, mib):
    line = [BENCH, what, endpoint, f"s3://{servers.BUCKET}/{prefix}", str(mib), str(STREAMS)]
    done = subprocess.run(
        line, env=servers.client_environment(), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def rclone(endpoint, prefix, command, *arguments):
    """Runs rclone with the prefix as its last argument."""
    remote = (
        f":s3,provider=Other,endpoint='{endpoint}',access_key_id='{servers.ACCESS_KEY}',"
        f"secret_access_key='{servers.SECRET_KEY}':{servers.BUCKET}/{prefix}"
    )
    line = [servers.environment() / "bin/rclone", command, "--config", "/dev/null", *arguments, remote]
    subprocess.run(line, env=servers.client_environment(), check=True, capture_output=True)


def rclone_copy(endpoint, directory, prefix):
    options = ["--transfers", str(STREAMS), "--s3-upload-concurrency", str(STREAMS)]
    begin = time.perf_counter()
    rclone(endpoint, prefix, "copy", *options, "--s3-chunk-size", "8M", directory)
    return (time.perf_counter() - begin) * 1000


def requests_of_a_delta(endpoint):
    """The requests after the last byte of a delta: from its part's PUT to its manifest's."""
    with FaultyProxy(endpoint) as proxy:
        bench("publish", proxy.endpoint, "requests", 1)
        delta = [i for i, r in enumerate(proxy.log) if "/delta" in r.path and r.method == "PUT"]
        seal = [i for i, r in enumerate(proxy.log) if r.seals and "2.version" in r.path]
        publisher = [f"{r.method} {Path(r.path).name}" for r in proxy.log[delta[-1] : seal[-1] + 1]]
        proxy.log.clear()
        bench("fetch", proxy.endpoint, "requests", 1)
        receiver = [f"{r.method} {Path(r.path).name}" for r in proxy.log if "2.version" in r.path]
    return publisher, receiver


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    with tempfile.TemporaryDirectory(prefix="driftless-bench-") as work:
        files = Path(work) / "files"
        files.mkdir()
        for number in range(max(1, mib // 64)):
            (files / f"part{number}").write_bytes(os.urandom(1 << 20) * min(64, mib))
        print("| server | ours, publish | rclone copy | share | ours, fetch | peak publish / fetch |")
        print("|---|---|---|---|---|---|")
        for round_number in range(3):
            with servers.serve("rclone", work) as endpoint:
                theirs = rclone_copy(endpoint, files, "theirs")
                ours = bench("publish", endpoint, "ours", mib)
                fetched = bench("fetch", endpoint, "ours", mib)
            print(
                f"| rclone, round {round_number} | {ours['publish_ms']:.0f} ms | {theirs:.0f} ms "
                f"| {theirs / ours['publish_ms']:.2f} | {fetched['fetch_ms']:.0f} ms "
                f"| {ours['peak_mib']:.0f} / {fetched['peak_mib']:.0f} MiB |",
                flush=True,
            )
        with servers.serve("moto", work) as endpoint:
            publisher, receiver = requests_of_a_delta(endpoint)
        print("after the last byte, publisher:", ", ".join(publisher))
        print("receiver:", ", ".join(receiver))


if __name__ == "__main__":
    main()

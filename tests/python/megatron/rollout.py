# SPDX-License-Identifier: Apache-2.0
"""A rollout of a test job: follows the run, and saves the weights of every version that it commits.

    rollout.py JOB.json NAME     under mpirun beside the trainers, or alone

JOB.json: flags (those of the trainer), work; optional: base, slow_s (sleep before each commit),
die_at (version). On the CPU it uses no torch, which a rollout does not need.
"""

import argparse
import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import driftless
import driftless.megatron


def leave(work, name, receiver, target):
    tensors = {}
    for spec in target.layout:
        tensors[spec.name] = (
            spec.dtype,
            tuple(spec.shape),
            bytes(memoryview(target.ref(spec.name)).cast("B")),
        )
    kept = {"version": receiver.version, "digest": receiver.digest, "tensors": tensors}
    (work / "rollouts" / f"{name}_{receiver.version:06d}.pickle").write_bytes(pickle.dumps(kept))
    (work / "acks" / f"{name}_{receiver.version:06d}").touch()


def main():
    given, name = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]
    if os.environ.get("DRIFTLESS_TEST_GPU") == "1":  # several NCCL processes on one GPU
        os.environ.update(NCCL_HOSTID=f"rollout{os.getpid()}", NCCL_SOCKET_IFNAME="lo")
        import torch  # noqa: F401  uses the trainers' NCCL, as engines do
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        name += os.environ["OMPI_COMM_WORLD_RANK"]
    work = Path(given["work"])
    parser = driftless.megatron.add_arguments(argparse.ArgumentParser())
    options = driftless.megatron.options_from(parser.parse_args(given["flags"]))
    config = driftless.megatron.load_config(options)
    with driftless.Job(config, "rollout") as job:
        target = driftless.OwnedTarget(given.get("base"))
        hook = driftless.megatron.before_read(options, config)
        receiver = driftless.Receiver(job, target, id=name, before_read=hook)
        while True:
            if receiver.stage(0.1):
                time.sleep(given.get("slow_s", 0))
                receiver.commit()
                leave(work, name, receiver, target)
                if receiver.version == given.get("die_at"):
                    os.kill(os.getpid(), signal.SIGKILL)
                continue
            end = receiver.end()
            if end is not None and receiver.version >= end.version:
                break
        receiver.leave()
        receiver.close()
    print(f"{name} ended at version {end.version}", flush=True)


main()

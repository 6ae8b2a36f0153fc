# SPDX-License-Identifier: Apache-2.0
"""The time that weight updates add to a step of real Megatron: a model of 1 G parameters on one GPU.

    python3 tests/bench/megatron_bench.py steps [none|device|pinned ...]

Mode delta, every step, over files in memory, to a rollout process in host memory. Steps without updates
run before, between and after, so that whole steps are compared within one run.

    mpirun -n 1 python3 tests/bench/megatron_bench.py trainer : -n 1 python3 tests/bench/megatron_bench.py rollout

The same over the nccl road to a rollout that shares the GPU; the added time is given as a share of a
forward and backward pass. Both print medians. Needs torch, megatron-core, and on PYTHONPATH our package
and tests/python/megatron.
"""

import argparse
import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ["DRIFTLESS_TEST_GPU"] = "1"
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
# Several NCCL processes share one GPU: each must claim to be another host.
os.environ.update(NCCL_HOSTID=f"process{os.getpid()}", NCCL_SOCKET_IFNAME="lo")

import torch  # noqa: E402

import driftless  # noqa: E402
import driftless.megatron  # noqa: E402

# 1.03 G parameters, shaped as Qwen3.
SIZES = {
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
JOB = {"tp": 1, "pp": 1, "ep": 1, "sizes": SIZES, "sequence": 4096, "batch": 1, "lr": 3e-7}
STEPS, WARM = 12, 4
PARTS = ("gather", "convert", "diff", "encode", "send")
ROADS = {
    "nccl": "road: {{ kind: nccl }}\nanchors: {{ first: true }}\n",
    "disk": "road: {{ kind: shared_fs, shared_fs: {{ dir: {directory} }}, layout: frames, "
    "poll_first: 1ms, poll_longest: 2ms }}\n",
}
DEADLINES = "deadlines: { connect: 120s, publish: 60s }\n"


def flags(snapshot, road, directory=""):
    path = f"/tmp/driftless-megatron-bench-{os.getpid()}.yaml"
    atexit.register(Path(path).unlink, missing_ok=True)
    with open(path, "w") as file:
        file.write(ROADS[road].format(directory=directory) + DEADLINES)
    parser = driftless.megatron.add_arguments(argparse.ArgumentParser())
    return parser.parse_args(["--update-weight-mode", "delta", "--update-weight-snapshot", snapshot,
                              "--update-weight-config", path])  # fmt: skip


class Trainer:
    """The model, and the times of its passes and steps, in ms."""

    def __init__(self):
        import torch.distributed as dist

        import tiny_config
        import tiny_model

        driftless.megatron.torch_environment()
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")
        self.inner = tiny_model.Trainer(JOB)
        self.hf_config = tiny_config.hf_config(JOB)
        self.parameters = sum(p.numel() for chunk in self.inner.model for p in chunk.parameters())
        self.passes = []
        forward_backward = self.inner.forward_backward

        def timed(**kwargs):
            trained()
            begin = time.perf_counter()
            result = forward_backward(**kwargs)
            trained()
            self.passes.append((time.perf_counter() - begin) * 1e3)
            return result

        self.inner.forward_backward = timed

    def attach(self, args):
        return driftless.megatron.attach(
            self.inner.model, self.inner.optimizer, args, self.hf_config
        )

    def detach(self):
        """Runs steps without updates again."""
        self.inner.optimizer.__dict__.pop("step")
        for child in self.inner.optimizer.chained_optimizers:
            child.__dict__.pop("_copy_main_params_to_model_params", None)

    def steps(self, session=None):
        """Milliseconds of each whole step, and the session's report of its version."""
        took, reports = [], []
        for _ in range(STEPS):
            begin = time.perf_counter()
            self.inner.step()
            trained()
            took.append((time.perf_counter() - begin) * 1e3)
            if session is not None and session.last is not None:
                reports.append(session.last)
        return took, reports


def median(values):
    return statistics.median(values[WARM:])


def split_of(reports):
    values = {
        "gather": [t.sync_ms + t.gather_ms for t in reports],
        "convert": [t.convert_ms for t in reports],
        "diff": [t.diff_ms for t in reports],
        "encode": [t.encode_ms for t in reports],
        "send": [t.send_ms for t in reports],
    }
    return {name: median(values[name]) for name in PARTS}


def density_of(reports):
    return median([t.published.changed_units / t.published.total_units for t in reports])


def trained():
    """Waits for the trainer's queued work, but not for work of updates on other streams."""
    torch.cuda.current_stream().synchronize()


def used_bytes():
    """GPU memory in use, without torch's."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def compare(*snapshots):
    """Whole steps, with and without updates."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="29431")  # fmt: skip
    trainer = Trainer()
    trainer.steps()
    plain = [median(trainer.steps()[0])]
    rows = []
    for snapshot in snapshots or ("none", "device", "pinned"):
        rows.append(with_us(trainer, snapshot))
        plain.append(median(trainer.steps()[0]))
        rows[-1]["plain_ms"] = (plain[-2] + plain[-1]) / 2
        rows[-1]["share"] = rows[-1]["step_ms"] / rows[-1]["plain_ms"] - 1
        print(json.dumps({"megatron_step": rows[-1]}), flush=True)
    torch.distributed.destroy_process_group()


def with_us(trainer, snapshot):
    directory = Path(f"/dev/shm/driftless-megatron-bench-{os.getpid()}-{snapshot}")
    follower = subprocess.Popen(
        [sys.executable, __file__, "follow", snapshot, str(directory)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = used_bytes()
        session = trainer.attach(flags(snapshot, "disk", directory))
        steps, reports = trainer.steps(session)
        held = used_bytes() - before
        session.close()
        trainer.detach()
        if follower.wait(60) != 0:
            raise RuntimeError("the rollout failed")
    finally:
        follower.kill()
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "parameters": trainer.parameters,
        "snapshot": snapshot,
        "density": density_of(reports),
        "forward_backward_ms": median(trainer.passes[-STEPS:]),
        "step_ms": median(steps),
        "added_ms": median([t.total_ms for t in reports]),
        "visible_ms": median([t.visible_ms for t in reports]),
        "capture_ms": median([t.published.live.capture_ms for t in reports]),
        "sweep_ms": median([t.published.live.sweep_ms for t in reports]),
        "captured_mib": max(t.published.live.captured_bytes for t in reports) / (1 << 20),
        "gpu_mib": held / (1 << 20),
        "resent": sum(t.published.live.resent_tensors for t in reports),
        "split_ms": split_of(reports),
    }


def train(snapshot="device"):
    """The trainer over NCCL, under mpirun."""
    trainer = Trainer()
    session = trainer.attach(flags(snapshot, "nccl"))
    steps, reports = trainer.steps(session)
    session.close()
    ours = median([t.total_ms for t in reports])
    found = {
        "parameters": trainer.parameters,
        "tokens": 2 * JOB["sequence"] * JOB["batch"],
        "snapshot": snapshot,
        "forward_backward_ms": median(trainer.passes),
        "step_ms": median(steps),
        "ours_ms": ours,
        "density": density_of(reports),
        "share": ours / median(trainer.passes),
        "split_ms": split_of(reports),
    }
    torch.distributed.destroy_process_group()
    print(json.dumps({"megatron_overhead": found}), flush=True)


def follow(snapshot="device", directory=None):
    """The rollout; over files it starts from the run's base."""
    base = None
    if directory is not None:
        base = Path(directory) / "base"
        while not base.exists():
            time.sleep(0.05)
    options = driftless.megatron.options_from(
        flags(snapshot, "disk" if directory else "nccl", directory)
    )
    with driftless.Job(driftless.megatron.load_config(options), "rollout") as job:
        target = driftless.OwnedTarget(base)
        receiver = driftless.Receiver(job, target, id="rollout")
        end = None
        while end is None or receiver.version < end.version:
            if receiver.stage(0.1):
                receiver.commit()
            end = end or receiver.end()
        receiver.leave()
        receiver.close()


WAYS = {"steps": compare, "trainer": train, "rollout": follow, "follow": follow}
WAYS[sys.argv[1]](*sys.argv[2:])

# SPDX-License-Identifier: Apache-2.0
"""What weight updates add to a step of real Megatron: a model of 1 G parameters on one GPU.

    mpirun -n 1 python3 tests/bench/megatron_bench.py trainer : -n 1 python3 tests/bench/megatron_bench.py rollout

Mode delta, every step, over the nccl road to a rollout that shares the GPU. Prints the medians, and
our time as a share of a forward and backward pass. Needs torch, megatron-core, and our package and
tests/python/megatron on PYTHONPATH.
"""

import argparse
import json
import os
import statistics
import sys
import time

os.environ["DRIFTLESS_TEST_GPU"] = "1"
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
# Several NCCL processes on one GPU: each has to seem to be on a host of its own.
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
YAML = """
road: {{ kind: nccl }}
anchors: {{ first: true }}
snapshot: {snapshot}
deadlines: {{ connect: 120s, publish: 60s }}
"""


def flags(snapshot):
    path = f"/tmp/driftless-megatron-bench-{os.getpid()}.yaml"
    with open(path, "w") as file:
        file.write(YAML.format(snapshot=snapshot))
    parser = driftless.megatron.add_arguments(argparse.ArgumentParser())
    return parser.parse_args(["--update-weight-mode", "delta", "--update-weight-transport", "nccl",
                              "--update-weight-config", path]), path  # fmt: skip


def train(snapshot):
    import torch.distributed as dist

    import tiny_config
    import tiny_model

    driftless.megatron.torch_environment()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    trainer = tiny_model.Trainer(JOB)
    parameters = sum(p.numel() for chunk in trainer.model for p in chunk.parameters())
    args, path = flags(snapshot)
    session = driftless.megatron.attach(
        trainer.model, trainer.optimizer, args, tiny_config.hf_config(JOB)
    )
    passes, steps, ours, splits, density = [], [], [], [], []
    inner = trainer.forward_backward

    def timed(**kwargs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = inner(**kwargs)
        torch.cuda.synchronize()
        passes.append((time.perf_counter() - begin) * 1e3)
        return result

    trainer.forward_backward = timed
    for _ in range(STEPS):
        begin = time.perf_counter()
        trainer.step()
        torch.cuda.synchronize()
        steps.append((time.perf_counter() - begin) * 1e3)
        last = session.last
        ours.append(last.total_ms)
        density.append(last.published.changed_units / last.published.total_units)
        values = (last.sync_ms + last.gather_ms, last.convert_ms, last.diff_ms, last.encode_ms,
                  last.send_ms)  # fmt: skip
        splits.append(dict(zip(PARTS, values)))
    session.close()
    os.unlink(path)

    def median(values):
        return statistics.median(values[WARM:])

    found = {
        "parameters": parameters,
        "tokens": 2 * JOB["sequence"] * JOB["batch"],
        "snapshot": snapshot,
        "forward_backward_ms": median(passes),
        "step_ms": median(steps),
        "ours_ms": median(ours),
        "density": median(density),
        "share": median(ours) / median(passes),
        "split_ms": {name: median([s[name] for s in splits]) for name in PARTS},
    }
    dist.destroy_process_group()
    print(json.dumps({"megatron_overhead": found}), flush=True)


def follow(snapshot):
    args, path = flags(snapshot)
    options = driftless.megatron.options_from(args)
    with driftless.Job(driftless.megatron.load_config(options), "rollout") as job:
        target = driftless.OwnedTarget()
        receiver = driftless.Receiver(job, target, id="rollout")
        end = None
        while end is None or receiver.version < end.version:
            if receiver.stage(0.1):
                receiver.commit()
            end = end or receiver.end()
        receiver.leave()
        receiver.close()
    os.unlink(path)


{"trainer": train, "rollout": follow}[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "device")

"""See scripts/demo_megatron.sh. Uses the training job and the obvious export of the tests."""

import json
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests/python/megatron"
sys.path.insert(0, str(TESTS))

from obvious_export import export  # noqa: E402
from tiny_config import hf_config  # noqa: E402

# Small: bf16 is slow on most CPUs.
SIZES = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 512,
    "vocab_size": 2000,
}
PARTS = ("gather", "convert", "diff", "encode", "send")


def environment(work):
    found = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}/build/python{os.pathsep}{TESTS}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm": "isolated",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "USE_LIBUV": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "MASTER_PORT": str(20000 + os.getpid() % 20000),
    }
    if shutil.disk_usage("/dev/shm").free < 2e9:
        found["OMPI_MCA_osc_sm_backing_directory"] = str(work)
    return found


def run(work, steps):
    """Trains; returns the milliseconds of each step, updates included."""
    for name in ("shards", "acks", "rollouts"):
        (work / name).mkdir()
    (work / "config.yaml").write_text(
        "anchors: { first: true }\nroad: { kind: mpi_rma, ring_size: 256MiB }\n"
    )
    flags = [
        "--update-weight-mode",
        "delta",
        "--update-weight-transport",
        "mpi_rma",
        "--update-weight-config",
        str(work / "config.yaml"),
    ]
    job = {
        "tp": 2,
        "pp": 2,
        "ep": 1,
        "steps": steps,
        "work": str(work),
        "sizes": SIZES,
        "sessions": [{"flags": flags}],
        "last_shards_only": True,
    }
    (work / "job.json").write_text(json.dumps(job))
    (work / "rollout.json").write_text(json.dumps({"work": str(work), "flags": flags}))
    python = sys.executable
    line = [
        "mpirun",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-n",
        "4",
        python,
        TESTS / "train.py",
        work / "job.json",
        ":",
        "-n",
        "2",
        python,
        TESTS / "rollout.py",
        work / "rollout.json",
        "rollout",
    ]
    result = subprocess.run(
        line, env=environment(work), capture_output=True, text=True, timeout=900
    )
    if result.returncode != 0:
        sys.exit(f"the Megatron job failed:\n{result.stderr[-3000:]}")
    return [
        float(ms)
        for ms in re.findall(r"^step \d+ successful True ms ([\d.]+)", result.stdout, re.M)
    ], job


def same(work, job, versions):
    """Whether both rollouts hold what an obvious export makes of the last step's shards."""
    ranks = []
    for file in sorted((work / "shards").glob(f"{versions[-1]['label']}_*.pickle")):
        rank = pickle.loads(file.read_bytes())
        for chunk in rank["chunks"]:
            for name, (size, shape, data) in chunk.items():
                chunk[name] = np.frombuffer(data, dtype=f"<u{size}").reshape(shape)
        ranks.append(rank)
    wanted = export(ranks, hf_config(job))
    rollouts = sorted((work / "rollouts").glob(f"*_{versions[-1]['version']:06d}.pickle"))
    for file in rollouts:
        found = pickle.loads(file.read_bytes())["tensors"]
        if set(found) != set(wanted) or any(
            data != np.ascontiguousarray(wanted[name]).tobytes()
            for name, (_, _, data) in found.items()
        ):
            return False
    return len(rollouts) == 2


def main():
    steps = int(sys.argv[1])
    work = Path(tempfile.mkdtemp(prefix="driftless-demo-"))
    try:
        print(
            f"megatron-core trains a Qwen3-shaped model on the CPU, TP 2 x PP 2, {steps} steps ...",
            flush=True,
        )
        took, job = run(work, steps)
        versions = [json.loads(line) for line in (work / "versions.jsonl").read_text().splitlines()]
        equal = same(work, job, versions)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(
        f"\n{'version':>7} {'changed':>8} {'wire':>10} {'of':>10}   ms added to the step: "
        + " ".join(f"{part:>8}" for part in PARTS)
        + f" {'together':>9} {'training':>9}"
    )
    for version, step_ms in zip(versions, took, strict=True):
        split = " ".join(f"{version['split'][part]:8.1f}" for part in PARTS)
        share = 100 * version["changed"] / version["total"]
        print(
            f"{version['version']:7} {share:7.2f}% {version['wire_bytes']:10} "
            f"{version['full_bytes']:10}   "
            f"{'':23}{split} {version['ms']:9.1f} {step_ms - version['ms']:9.1f}"
        )
    added = statistics.median(v["ms"] for v in versions)
    alone = statistics.median(ms - v["ms"] for v, ms in zip(versions, took, strict=True))
    print(
        f"median: {added:.1f} ms added to {alone:.1f} ms of training; rollouts bit-identical: "
        f"{'yes' if equal else 'NO'}"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())

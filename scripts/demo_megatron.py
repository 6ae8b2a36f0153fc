# SPDX-License-Identifier: Apache-2.0
"""See scripts/demo_megatron.sh. Uses the training job and the reference export of the tests."""

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

# Small sizes: bf16 is slow on most CPUs.
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
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "MASTER_PORT": str(20000 + os.getpid() % 12000),
    }
    if shutil.disk_usage("/dev/shm").free < 2e9:
        found["OMPI_MCA_osc_sm_backing_directory"] = str(work)
    return found


def run(work, steps, pp, *rollouts):
    """Trains with TP 2 x PP `pp`, followed by (count, command ...). Returns the job, the
    milliseconds of each step including updates, and the log line of each version."""
    for name in ("shards", "acks", "rollouts"):
        (work / name).mkdir(parents=True)
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
        "pp": pp,
        "ep": 1,
        "steps": steps,
        "work": str(work),
        "sizes": SIZES,
        "sessions": [{"flags": flags}],
        "last_shards_only": True,
    }
    (work / "job.json").write_text(json.dumps(job))
    (work / "rollout.json").write_text(json.dumps({"work": str(work), "flags": flags}))
    line = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    for count, *command in [(2 * pp, TESTS / "train.py", work / "job.json"), *rollouts]:
        line += [":", "-n", str(count), sys.executable, *command]
    line.remove(":")
    result = subprocess.run(
        line, env=environment(work), capture_output=True, text=True, timeout=900
    )
    if result.returncode != 0:
        sys.exit(f"the Megatron job failed:\n{result.stderr[-3000:]}")
    took = re.findall(r"^step \d+ successful True ms ([\d.]+)", result.stdout, re.M)
    versions = [json.loads(line) for line in (work / "versions.jsonl").read_text().splitlines()]
    return job, [float(ms) for ms in took], versions


def exported(work, job, versions):
    """The bytes of each tensor after the last step, by the reference export of its shards."""
    ranks = []
    for file in sorted((work / "shards").glob(f"{versions[-1]['label']}_*.pickle")):
        rank = pickle.loads(file.read_bytes())
        for chunk in rank["chunks"]:
            for name, (size, shape, data) in chunk.items():
                chunk[name] = np.frombuffer(data, dtype=f"<u{size}").reshape(shape)
        ranks.append(rank)
    tensors = export(ranks, hf_config(job))
    return {name: np.ascontiguousarray(tensor).tobytes() for name, tensor in tensors.items()}


def same(work, versions, wanted):
    """Whether both rollouts hold the `wanted` weights."""
    rollouts = sorted((work / "rollouts").glob(f"*_{versions[-1]['version']:06d}.pickle"))
    found = [pickle.loads(file.read_bytes())["tensors"] for file in rollouts]
    held = [{name: data for name, (_, _, data) in tensors.items()} for tensors in found]
    return held == [wanted, wanted]


def show(versions, took, equal):
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


def two_rollouts(work, steps):
    """Prints what each version added to its step; returns whether both end with the trainer's
    weights."""
    print(
        f"megatron-core trains a Qwen3-shaped model on the CPU, TP 2 x PP 2, {steps} steps ...",
        flush=True,
    )
    job, took, versions = run(
        work, steps, 2, (2, TESTS / "rollout.py", work / "rollout.json", "rollout")
    )
    equal = same(work, versions, exported(work, job, versions))
    show(versions, took, equal)
    return equal


def make_base(work):
    """Makes a random base for the engine. Returns (its path, ""), or None and the reason."""
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging
    except ImportError as problem:
        return None, f"{problem}".splitlines()[0]
    logging.disable_progress_bar()
    config = AutoConfig.for_model(**hf_config({"sizes": SIZES}))
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(work / "base")
    return work / "base", ""


def judge_engine(work, versions, wanted):
    """Prints what the engine did; returns whether its weights are the trainer's."""
    record = json.loads((work / "engine.json").read_text())
    found = pickle.loads((work / "engine.pickle").read_bytes())
    unlike = sorted(
        name for name in wanted.keys() | found.keys() if found.get(name) != wanted.get(name)
    )
    busy = record["tokens_while_staging"]
    first, last, pauses = record["versions"][0], record["versions"][-1], record["pauses_ms"]
    print(
        f"versions {first} to {last} in {len(record['versions'])} updates; "
        f"{record['tokens']} tokens meanwhile, "
        f"in {record['texts']} texts, {record['mixed']} of them by more than one version\n"
        f"staging: {statistics.median(record['staging_ms']):.1f} ms (median); generation "
        f"{'went on' if busy else 'stood still'}: {busy} tokens were in the making during it\n"
        f"pause: {statistics.median(pauses):.1f} ms (median), with the wait for a token's end\n"
        f"its {len(found)} tensors are the trainer's last export, bit for bit: "
        + (f"NO: {', '.join(unlike[:3])}" if unlike else "yes")
    )
    return not unlike and record["versions"][-1] == versions[-1]["version"]


def engine(work, steps):
    """Returns whether a transformers model that generates meanwhile ends with the trainer's
    weights."""
    base, why = make_base(work)
    if base is None:
        print(f"The engine of transformers is left out: {why}")
        return True
    print(f"An engine of transformers generates and follows, TP 2, {steps} steps ...", flush=True)
    rollout = (1, ROOT / "scripts/demo_engine.py", work / "rollout.json", base)
    job, _, versions = run(work, steps, 1, rollout)
    return judge_engine(work, versions, exported(work, job, versions))


def main():
    steps = int(sys.argv[1])
    work = Path(tempfile.mkdtemp(prefix="driftless-demo-"))
    try:
        equal = two_rollouts(work / "rollouts", steps)
        print()
        equal = engine(work / "engine", steps) and equal
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())

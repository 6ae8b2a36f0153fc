# SPDX-License-Identifier: Apache-2.0
"""The pause of an engine's module during a commit, by phase.

  python tests/bench/module_bench.py --device cuda            # 1 G elements of a Qwen3, 1 % changed
  python tests/bench/module_bench.py --device cpu --layers 2 --vocab 8192

A module with fused q/k/v and gate/up, with the rows and columns of one of two tensor-parallel ranks,
follows a publisher over a directory in memory. The same run also measures the usual way in torch:
full-shape tensors, with NaN for unchanged elements, go through load_weights, with a copy that skips
NaNs; once with the checks of vLLM's load_checkpoint_weight_patches (no NaN, no position twice or out
of range; Driftless does these while staging), and once without.
Needs torch, safetensors and the built package (PYTHONPATH=build/python).
"""

import argparse
import ctypes
import json
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import driftless
from driftless.engines import ModuleTarget
from made_steps import Source, step


CHUNK_BYTES = 512_000_000  # a little less than the default of 512 MiB


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--ffn", type=int, default=6144)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--percent", type=float, default=1.0)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--work", default="/dev/shm")
    parser.add_argument("--probe", help="path of gpu_probe, to measure how long staging holds the GPU")
    parser.add_argument("--masked", action="store_true", help="write all tensors by masked overwrite")
    parser.add_argument("--encoding", default="auto", help="the configuration's `encoding`")
    parser.add_argument("--layout", default="auto", help="road.layout: auto, flush or frames")
    parser.add_argument("--mode", default="delta", help="delta, or full: every version whole")
    parser.add_argument("--prove", default="staged", help="receiver.prove: staged, or always")
    return parser.parse_args()


class Block(torch.nn.Module):
    def __init__(self, a):
        super().__init__()
        head = a.hidden // a.heads

        def parameter(*shape):
            made = torch.empty(shape, dtype=torch.bfloat16, device=a.device)
            return torch.nn.Parameter(made, requires_grad=False)

        self.qkv = parameter((a.heads + 2 * a.kv_heads) * head // a.tp, a.hidden)
        self.o = parameter(a.hidden, a.hidden // a.tp)
        self.gate_up = parameter(2 * a.ffn // a.tp, a.hidden)
        self.down = parameter(a.hidden, a.ffn // a.tp)
        self.norms = parameter(2, a.hidden)


class Model(torch.nn.Module):
    """Rank 0 of a tensor-parallel group."""

    def __init__(self, a):
        super().__init__()
        self.a = a
        self.embed = torch.nn.Parameter(
            torch.empty(a.vocab // a.tp, a.hidden, dtype=torch.bfloat16, device=a.device),
            requires_grad=False,
        )
        self.blocks = torch.nn.ModuleList(Block(a) for _ in range(a.layers))

    def shapes(self):
        a, head = self.a, self.a.hidden // self.a.heads
        yield "embed.weight", (a.vocab, a.hidden)
        for i in range(a.layers):
            for name, rows, columns in (
                ("q", a.hidden, a.hidden),
                ("k", a.kv_heads * head, a.hidden),
                ("v", a.kv_heads * head, a.hidden),
                ("o", a.hidden, a.hidden),
                ("gate", a.ffn, a.hidden),
                ("up", a.ffn, a.hidden),
                ("down", a.hidden, a.ffn),
            ):
                yield f"layers.{i}.{name}", (rows, columns)
            yield f"layers.{i}.norm0", (a.hidden,)
            yield f"layers.{i}.norm1", (a.hidden,)

    def load_weights(self, weights):
        tp = self.a.tp
        for name, tensor in weights:
            if name == "embed.weight":
                self.embed.data.copy_(tensor.narrow(0, 0, tensor.shape[0] // tp))
                continue
            _, number, what = name.split(".")
            block = self.blocks[int(number)]
            if what in ("o", "down"):
                getattr(block, what).data.copy_(tensor.narrow(1, 0, tensor.shape[1] // tp))
            elif what.startswith("norm"):
                block.norms.data[int(what[4:])].copy_(tensor)
            else:
                rows = tensor.shape[0] // tp
                q = block.qkv.shape[0]
                kv = self.a.kv_heads * (self.a.hidden // self.a.heads) // tp
                at = {"q": 0, "k": q - 2 * kv, "v": q - kv, "gate": 0, "up": rows}[what]
                into = block.gate_up if what in ("gate", "up") else block.qkv
                into.data.narrow(0, at, rows).copy_(tensor.narrow(0, 0, rows))


def look_over(patches):
    """One check of all patches: NaNs among the values, positions out of range or repeated."""
    bad = []
    for _, shape, at, values in patches:
        ascending = at.sort().values
        bad.append(values.isnan().any())
        bad.append(torch.logical_or(at < 0, at >= torch.Size(shape).numel()).any())
        bad.append(ascending[1:].eq(ascending[:-1]).any())
    assert not torch.stack(bad).any().item()


def nan_masked(model, patches):
    """The usual way: dense tensors of NaN, then a copy that skips NaNs."""
    plain = torch.Tensor.copy_

    def keeping(target, source, non_blocking=False):
        source = source.to(dtype=target.dtype, device=target.device)
        return torch.where(source.isnan(), target, source, out=target)

    def tensors():
        for name, shape, at, values in patches:
            count = 1
            for size in shape:
                count *= size
            full = torch.full((count,), float("nan"), dtype=values.dtype, device=values.device)
            full.index_copy_(0, at, values)
            yield name, full.view(shape)

    torch.Tensor.copy_ = keeping
    try:
        with torch.no_grad():
            model.load_weights(tensors())
    finally:
        torch.Tensor.copy_ = plain


class ProbeResult(ctypes.Structure):
    _fields_ = (
        ("longest_ms", ctypes.c_double),
        ("longest_at_ms", ctypes.c_double),
        ("longest_call_ms", ctypes.c_double),
        ("longest_gap_ms", ctypes.c_double),
        ("asked", ctypes.c_long),
    )


class Probe(threading.Thread):
    """Measures how long other GPU work waits meanwhile (tests/bench/gpu_probe.cu). Without that
    library, or without a GPU, it measures nothing."""

    def __init__(self, library):
        super().__init__(daemon=True)
        self.library = ctypes.CDLL(library) if library else None
        self.ending, self.ready, self.result = ctypes.c_int(0), ctypes.c_int(0), ProbeResult()
        self.status = 0

    def found(self, when=""):
        """The fields for the row of a version."""
        result = self.result if self.library else None
        return {
            f"longest_hold_ms{when}": result and result.longest_ms,
            f"longest_hold_at_ms{when}": result and result.longest_at_ms,
            f"longest_call_ms{when}": result and result.longest_call_ms,
            f"longest_gap_ms{when}": result and result.longest_gap_ms,
        }

    def run(self):
        given = (self.ending, self.ready, self.result)
        self.status = self.library.gpu_probe(*(ctypes.byref(each) for each in given))

    def __enter__(self):
        if self.library:
            self.start()
            while not self.ready.value:
                time.sleep(0.001)
        return self

    def __exit__(self, *_):
        if self.library:
            self.ending.value = 1
            self.join()
            assert self.status == 0 and self.result.asked > 0, "the probe could not use CUDA"


def synchronize(a):
    if a.device != "cpu":
        torch.cuda.synchronize()


def timed(a, work):
    synchronize(a)
    begin = time.perf_counter()
    result = work()
    synchronize(a)
    return (time.perf_counter() - begin) * 1e3, result


def free_bytes(a):
    if a.device == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


class Pause:
    """The engine's pause: the time from pause() to resume()."""

    def __init__(self):
        self.begin = self.ms = 0.0

    def pause(self):
        self.begin = time.perf_counter()

    def resume(self):
        self.ms = (time.perf_counter() - self.begin) * 1e3


def follow(a, model, weights, target, receiver, publisher, pause):
    generator = torch.Generator(a.device).manual_seed(1)
    rows = []
    for _ in range(a.versions):
        changes = step(weights, a.percent, generator)
        publisher.publish(Source(weights))
        new = [(n, s, at.to(a.device), v.to(a.device)) for n, s, at, v, _ in changes]
        old = [(n, s, at.to(a.device), v.to(a.device)) for n, s, at, _, v in changes]
        look_ms, _ = timed(a, lambda new=new: look_over(new))
        unchecked_ms, _ = timed(a, lambda new=new: nan_masked(model, new))
        expected = {n: p.clone() for n, p in model.named_parameters()}
        nan_masked(model, old)
        target.vouch()
        del new, old
        room = free_bytes(a)
        with Probe(a.probe) as probe:  # nothing else in this process waits for the whole GPU
            begin = time.perf_counter()
            assert receiver.stage(120)
            stage_ms = (time.perf_counter() - begin) * 1e3
        extra = room - free_bytes(a)
        with Probe(a.probe) as nobody:  # the same time without staging
            time.sleep(stage_ms / 1e3 if a.probe else 0)
        commit_ms, update = timed(a, receiver.commit)
        pause_ms = pause.ms
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, expected[name]), name
        undo_ms, _ = timed(a, receiver.rollback)
        assert receiver.stage(120)
        receiver.commit()
        rows.append(
            {
                "usual_ms": look_ms + unchecked_ms,
                "usual_unchecked_ms": unchecked_ms,
                "pause_ms": pause_ms,
                "commit_ms": commit_ms,  # including the check of the files before it, and the report after it
                "apply_ms": update.apply_ms,
                "undo_ms": undo_ms,
                "stage_ms": stage_ms,  # all of staging: find, fetch and hash, decode and prove
                "fetch_ms": update.fetch_ms,
                "decode_ms": update.stage_ms,
                "wire_mib": update.wire_bytes / 2**20,
                **probe.found(),
                **nobody.found("_without"),
                "extra_device_mib": extra / 2**20,
                "changed": update.changed_units,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    a = arguments()
    work = Path(tempfile.mkdtemp(prefix="driftless-bench-", dir=a.work))
    try:
        with torch.no_grad():
            model = Model(a)
            weights = {
                name: torch.randn(shape, dtype=torch.bfloat16, device=a.device).cpu()
                for name, shape in model.shapes()
            }
            model.load_weights(weights.items())
        base = work / "base"
        base.mkdir()
        save_file(weights, base / "model.safetensors")
        config = driftless.Config.parse(
            f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {work}/road\n"
            f"  layout: {a.layout}\n"
            f"mode: {a.mode}\nencoding: {a.encoding}\nreceiver:\n  prove: {a.prove}\n"
        )
        trainer = driftless.Job(config, "trainer", launched=False)
        rollout = driftless.Job(config, "rollout", launched=False)
        publisher = driftless.Publisher(trainer, Source(weights))
        allow = ("masked", "whole") if a.masked else ("direct", "plan")
        with Probe(a.probe):  # allocates the probe's own memory
            time.sleep(0.1)
        room = free_bytes(a)
        open_ms, target = timed(
            a, lambda: ModuleTarget(model, base, allow=allow, chunk_bytes=CHUNK_BYTES)
        )
        pause = Pause()
        receiver = driftless.Receiver(rollout, target, pause=pause.pause, resume=pause.resume)
        opening = (room - free_bytes(a)) / 2**20
        print(target.describe().splitlines()[0], f"(made in {open_ms:.0f} ms)")
        rows = follow(a, model, weights, target, receiver, publisher, pause)
        middle = {
            key: statistics.median(row[key] for row in rows)
            for key in rows[0]
            if rows[0][key] is not None
        }
        elements = sum(p.numel() for p in model.parameters())
        found = {
            "device": a.device,
            "elements": elements,
            "way": ("masked overwrite" if a.masked else "maps")
            + (", prove: always" if a.prove == "always" else "")
            + (", full" if a.mode == "full" else "")
            + (f", {a.encoding}" if a.encoding != "auto" else "")
            + (f", {a.layout}" if a.layout != "auto" else ""),
            **{key: round(value, 3) for key, value in middle.items()},
            # The maxima over all versions.
            **{
                key: max(row[key] for row in rows) if a.probe else None
                for key in rows[0]
                if key.startswith("longest")
            },
            # Allocated when the target is made: kernels of torch and of ours, and streams.
            "opening_mib": opening,
            # Allocated for versions, and kept: at most the changes (positions and values) and, with
            # masked overwrite, one chunk.
            "device_mib": sum(row["extra_device_mib"] for row in rows),
            "delta_mib": round(max(row["changed"] for row in rows) * 6 / 2**20, 1),
            "cap_mib": round(CHUNK_BYTES / 2**20, 1),
            "times_faster": round(middle["usual_ms"] / middle["pause_ms"], 1),
            "times_faster_unchecked": round(middle["usual_unchecked_ms"] / middle["pause_ms"], 1),
        }
        print(json.dumps({"module": found}))
        rollout.leave()
        trainer.leave()
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()

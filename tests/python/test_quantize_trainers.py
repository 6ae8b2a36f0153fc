# SPDX-License-Identifier: Apache-2.0
"""Trainers in bfloat16 whose rollouts have FP8 blocks: driftless.Publisher, with a snapshot and
without, and FSDP2. Each version equals the output of an independent converter for the step, bit for
bit."""

import json
import shutil
import threading

import numpy as np
import pytest
from quantize_reference import quantize_checkpoint
from test_quantize_run import KEPT, MATRICES, OTHERS, make_base, make_run

import binding
import test_binding_group
import test_sharded
from support import Tensor, ok, read_checkpoint, read_safetensors, run, write_checkpoint

driftless = binding.driftless()
KINDS = {"BF16": "<u2", "F32": "<f4"}


def arrays(tensors):
    """name -> (dtype, array), for binding.Source."""
    return {
        name: (each.dtype, np.frombuffer(each.data, KINDS[each.dtype]).reshape(each.shape).copy())
        for name, each in tensors.items()
    }


class Halves(binding.Source):
    """The same, with matrices in two boxes that divide blocks of 128."""

    def __init__(self, package, tensors):
        whole, self.cut = [], []
        for name, (dtype, array) in tensors.items():
            if array.ndim < 2 or array.shape[0] < 60:
                whole.append((name, dtype, array, None))
                continue
            for begin, end in ((0, 50), (50, len(array))):
                box = ([begin, 0], [end - begin, array.shape[1]])
                whole.append((name, dtype, array[begin:end], box))
            self.cut.append(name)
        shapes = {name: array.shape for name, (_, array) in tensors.items()}
        self.specs = [package.TensorSpec(n, d, shapes[n]) for n, d, _, _ in whole]
        self.arrays = [array for _, _, array, _ in whole]
        self.found = [box for _, _, _, box in whole]
        self.batch, self.visits = 3, 0

    def boxes(self):
        return self.found


def opened(work, base, source, *overrides, **more):
    config = binding.config(driftless, work / "road", "road.layout=frames", *overrides)
    job = driftless.Job(config, "trainer", launched=False)
    return job, driftless.Publisher(job, source, checkpoint=base, **more)


def check(work, base, history, versions, rule="linear"):
    target = work / "target"
    if not target.exists():
        shutil.copytree(base, target)
    for version in versions:
        applied = run("apply", work / "road", "--to", target, "--to-version", version,
                      "--verify", "full")  # fmt: skip
        assert applied.returncode == 0, applied.stderr
        wanted = quantize_checkpoint(rule, history[version], MATRICES)
        assert read_checkpoint(target) == wanted, version


@pytest.mark.parametrize("rule", ["linear", "ue8m0"])
@pytest.mark.parametrize("source", [binding.Source, Halves])
def test_a_publisher_quantizes_its_source(work, rng, source, rule):
    history = make_run(work, rng, 3)
    base = make_base(work, rule)
    sets = [f"quantize.rule={rule}", "encoding=compact"]
    job, publisher = opened(work, base, source(driftless, arrays(history[0])), *sets)
    for step in (1, 2, 3):
        report = publisher.publish(source(driftless, arrays(history[step])))
        assert report.version == step
    publisher.declare_end()
    job.close()
    check(work, base, history, (1, 2, 3), rule)
    output = json.loads((work / "road/run.json").read_text())
    assert output["quantize_rule"] == rule


@pytest.mark.parametrize("source", [binding.Source, Halves])
def test_captured_changes_are_coded(work, rng, source):
    """Without a snapshot of the weights or of their codes."""
    history = make_run(work, rng, 3)
    base = make_base(work)
    own = arrays(history[0])
    live = source(driftless, own)
    job, publisher = opened(work, base, live, snapshot="none")
    for step in (1, 2, 3):
        now = source(driftless, arrays(history[step]))
        publisher.capture(list(enumerate(now.arrays)))
        for array, new in zip(live.arrays, now.arrays, strict=True):
            array[...] = new
        report = publisher.publish(live, wait=step != 2)
        if report is None:
            report = publisher.wait()
        assert report.version == step
        assert report.live.captured_bytes > 0
        assert step == 3 or report.live.resent_tensors == 0  # in the last step all weights change
    publisher.declare_end()
    job.close()
    check(work, base, history, (1, 2, 3))


@pytest.mark.parametrize("names", [["model.norm.weight"], []])
def test_a_rank_may_hold_nothing_that_is_quantized(work, rng, names):
    """Also if the scheme is asked for by name."""
    history = make_run(work, rng, 2)
    base = make_base(work)
    shared = {"sent": [b""] * 2, "said": b"", "barrier": threading.Barrier(2)}
    versions = [None, None]

    def rank_main(rank):
        shares = [
            {n: t for n, t in step.items() if (n in names) == (rank == 1)} for step in history
        ]
        sources = [binding.Source(driftless, arrays(share)) for share in shares]
        group = test_binding_group.ThreadGroup(rank, 2, shared)
        job, publisher = opened(work, base, sources[0], "quantize.scheme=fp8_block", group=group)
        versions[rank] = [publisher.publish(source).version for source in sources[1:]]
        job.close()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert versions == [[1, 2], [1, 2]]
    check(work, base, history, (1, 2))


def test_version_0_is_the_checkpoint_on_a_rank_with_nothing_quantized(work, rng):
    """Whatever that rank's weights are when it starts, and when it starts again."""
    history = make_run(work, rng, 3)
    base = make_base(work)

    def start(first, steps):
        shared = {"sent": [b""] * 2, "said": b"", "barrier": threading.Barrier(2)}
        versions = [None, None]

        def rank_main(rank):
            sources = [
                binding.Source(
                    driftless,
                    arrays({n: t for n, t in history[i].items() if (n in KEPT) == (rank == 1)}),
                )
                for i in (first, *steps)
            ]
            group = test_binding_group.ThreadGroup(rank, 2, shared)
            job, publisher = opened(work, base, sources[0], group=group)
            versions[rank] = [publisher.publish(source).version for source in sources[1:]]
            job.close()

        threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return versions

    assert start(1, (1, 2)) == [[1, 2], [1, 2]]
    assert start(2, (3,)) == [[3], [3]]
    check(work, base, history, (1, 2, 3))


def test_wrong_combinations_are_refused(work, rng):
    history = make_run(work, rng, 1)
    base = make_base(work)
    source = binding.Source(driftless, arrays(history[0]))

    def refused(kind, words, base=base, source=source, *sets, **more):
        with pytest.raises(kind, match=words):
            opened(work, base, source, *sets, **more)
        assert not (work / "road/run.json").exists()

    errors = driftless.errors
    block = "quantize.scheme=fp8_block"
    refused(errors.InvalidArgumentError, "base checkpoint", None, source, block)
    bf16 = work / "run/step_000000"
    refused(errors.InvalidArgumentError, "quantize.scheme is fp8_block", bf16, source, block)
    refused(errors.WrongLayoutError, "FP8|base", base, source, "quantize.scheme=none")
    more = arrays(history[0]) | {"more.weight": ("BF16", np.zeros(3, "<u2"))}
    refused(errors.WrongLayoutError, "more.weight", base, binding.Source(driftless, more))
    refused(errors.UnsupportedError, "hf_delta.*snapshot: host", base, source,
            "road.layout=hf_delta", "encoding=xor", snapshot="none")  # fmt: skip
    for name in ("MXFP8", "NVFP4"):
        config = json.loads((base / "config.json").read_text())
        config["quantization_config"] = OTHERS[name]
        (base / "config.json").write_text(json.dumps(config))
        refused(errors.UnsupportedError, f"is quantized as '{name}'.*driftless quantize")


@pytest.mark.long
def test_fsdp2_publishes_into_an_fp8_base(work, rng):
    """Four ranks whose shards divide blocks of 128 rows; by driftless.publish()."""
    shapes = {"0.weight": (300, 140), "2.weight": (140, 300), "1.weight": (300,), "1.bias": (300,),
              "0.bias": (300,), "2.bias": (140,)}  # fmt: skip
    tensors = {}
    for name, shape in shapes.items():
        bits = (rng.standard_normal(shape) * 0.05).astype("<f4").view("<u4") >> 16
        tensors[name] = Tensor("BF16", shape, bits.astype("<u2").tobytes())
    bf16 = write_checkpoint(work / "bf16", tensors)
    (bf16 / "config.json").write_text("{}")
    ok("quantize", bf16, work / "fp8", "--only", "0.weight", "--only", "2.weight")
    test_sharded.trainers(work, "quantized_trainer.py", work / "fp8", bf16, work / "road", work)
    target = work / "target"
    shutil.copytree(work / "fp8", target)
    for version in (1, 2, 3):
        applied = run("apply", work / "road", "--to", target, "--to-version", version,
                      "--verify", "full")  # fmt: skip
        assert applied.returncode == 0, applied.stderr
        step, _ = read_safetensors(work / f"step{version}.safetensors")
        wanted = quantize_checkpoint("linear", step, {"0.weight", "2.weight"})
        assert read_checkpoint(target) == wanted, version

# SPDX-License-Identifier: Apache-2.0
"""Trainers in bfloat16 on a GPU whose rollouts have FP8 blocks, as Megatron's ranks use
driftless.Publisher. Each version equals the output of an independent converter, bit for bit.

Tests that need a GPU are skipped without one; tests/gpu/parts/python.sh runs them.
"""

import os
import shutil
from pathlib import Path

import int4_reference
import pytest

import binding
from support import ok, read_checkpoint

if "DRIFTLESS_PYTHON_PACKAGE" in os.environ:
    binding.PACKAGE = Path(os.environ["DRIFTLESS_PYTHON_PACKAGE"])
import test_quantize_trainers  # noqa: E402
from test_cuda_tensors import torch  # noqa: E402, F401
from test_quantize_run import make_base, make_run  # noqa: E402

# ruff: noqa: F811

driftless = binding.driftless()
STEPS = 3


def on_gpu(torch, array):
    kind = {2: torch.bfloat16, 4: torch.float32}[array.itemsize]
    return torch.from_numpy(array.copy().view(f"<i{array.itemsize}")).cuda().view(kind)


def source_of(torch, kind, tensors):
    made = kind(driftless, test_quantize_trainers.arrays(tensors))
    made.arrays = [on_gpu(torch, array) for array in made.arrays]
    return made


def opened(work, base, live, source, snapshot, **more):
    config = binding.config(driftless, work / "road", "road.layout=frames")
    job = driftless.Job(config, "trainer", launched=False)
    made = driftless.Publisher(job, source, checkpoint=base, snapshot=snapshot, live=live, **more)
    return job, made


@pytest.mark.parametrize("snapshot", ["pinned", "device"])
def test_tensors_of_their_own_are_quantized_where_they_lie(torch, work, rng, snapshot):
    """As source ranks gather them: other addresses in each version, gone after their batch."""
    history = make_run(work, rng, STEPS)
    base = make_base(work)
    first = source_of(torch, binding.Source, history[0])
    job, publisher = opened(work, base, None, first, snapshot)
    for step in range(1, STEPS + 1):
        now = source_of(torch, binding.Source, history[step])
        now.batch = len(now.arrays)
        report = publisher.publish(now)
        assert report.version == step
        assert report.changed_units > 0
        # Codes, scales and weights that stay in bfloat16: a part for each type of a batch.
        parts = list((work / "road").glob(f"*{step:06d}/rank*"))
        assert 1 <= len(parts) <= 3, parts
    publisher.declare_end()
    job.close()
    test_quantize_trainers.check(work, base, history, range(1, STEPS + 1))


@pytest.mark.parametrize("kind", [binding.Source, test_quantize_trainers.Halves])
@pytest.mark.parametrize("wait", [True, False])
def test_captured_changes_are_coded(torch, work, rng, kind, wait):
    """Without a snapshot: of whole matrices, and of parts that divide blocks."""
    history = make_run(work, rng, STEPS)
    base = make_base(work)
    live = source_of(torch, kind, history[0])
    whole = kind(driftless, test_quantize_trainers.arrays(history[0]))
    job, publisher = opened(work, base, live, whole, "none")
    for step in range(1, STEPS + 1):
        now = source_of(torch, kind, history[step])
        publisher.capture(list(enumerate(now.arrays)))
        for tensor, new in zip(live.arrays, now.arrays, strict=True):
            tensor.copy_(new)
        report = publisher.publish(live, wait=wait) or publisher.wait()
        assert report.version == step
        assert report.live.captured_bytes > 0
        assert not any("without capture" in note for note in report.notes), report.notes
    publisher.declare_end()
    job.close()
    test_quantize_trainers.check(work, base, history, range(1, STEPS + 1))


def test_fp32_values_are_captured_as_the_bfloat16_that_they_become(torch, work, rng):
    """As an optimizer keeps them, in the order of its flat buffer."""
    history = make_run(work, rng, 2)
    base = make_base(work)
    live = source_of(torch, test_quantize_trainers.Halves, history[0])
    whole = test_quantize_trainers.Halves(driftless, test_quantize_trainers.arrays(history[0]))
    job, publisher = opened(work, base, live, whole, "none")
    now = source_of(torch, test_quantize_trainers.Halves, history[1])
    publisher.capture([(n, tensor.float().view(-1)) for n, tensor in enumerate(now.arrays)])
    for tensor, new in zip(live.arrays, now.arrays, strict=True):
        tensor.copy_(new.float())
    publisher.publish(live)
    publisher.declare_end()
    job.close()
    test_quantize_trainers.check(work, base, history, [1])


@pytest.mark.parametrize("snapshot", ["pinned", "device", "none"])
def test_groups_in_int4_are_made_where_the_weights_lie(torch, work, rng, snapshot):
    group, names = 32, ["model.layers.1.self_attn.q_proj.weight"]
    history = make_run(work, rng, STEPS)
    base = work / "int4"
    made = ["--scheme", "int4_group", "--group", group, "--only", names[0]]
    ok("quantize", work / "run/step_000000", base, *made)
    first = source_of(torch, binding.Source, history[0])
    live = snapshot == "none"
    whole = binding.Source(driftless, test_quantize_trainers.arrays(history[0]))
    job, publisher = opened(work, base, first if live else None, whole if live else first, snapshot)
    for step in range(1, STEPS + 1):
        now = source_of(torch, binding.Source, history[step])
        if live:
            publisher.capture(list(enumerate(now.arrays)))
            for tensor, new in zip(first.arrays, now.arrays, strict=True):
                tensor.copy_(new)
        assert publisher.publish(first if live else now).version == step
    publisher.declare_end()
    job.close()
    shutil.copytree(base, work / "target")
    for step in range(1, STEPS + 1):
        ok("apply", work / "road", "--to", work / "target", "--to-version", step)
        wanted = int4_reference.quantize_checkpoint(group, history[step], names)
        assert read_checkpoint(work / "target") == wanted, step

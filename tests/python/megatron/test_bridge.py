# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge, if it can be installed: the same tensors, bit for bit; and its whole pretrain()
with our callback."""

import os
import shutil
import subprocess
import sys
import types

import binding
import jobs
import numpy as np
import pytest
from hub_keys import hub_yaml
from megatron_jobs import HERE, REPOSITORY, environment, environment_python, mpirun, shown

LAYOUTS = {"tp2_pp2": (4, "qwen3", 2, 2, 1), "ep2": (2, "qwen3_moe", 1, 1, 2)}


@pytest.mark.long  # installs an environment of its own
@pytest.mark.parametrize("layout", LAYOUTS)
def test_our_export_is_megatron_bridges(work, layout):
    jobs.need_mpirun()
    ranks, family, *parallel = LAYOUTS[layout]
    python = environment_python("bridge")
    line = mpirun((ranks, python, HERE / "bridge_compare.py", work, family, *parallel))
    env = environment(PYTHONPATH=f"{module_for(python)}:{HERE}")
    result = jobs.finish(jobs.start(line, env=env), 300)
    assert result.returncode == 0, result.stderr[-6000:]
    assert result.stdout.count("SAME ") == parallel[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("tp", "joined"),  # two ranks: tensor parallelism, or a shared optimizer
    [(2, "torch"), (2, "hub"), (1, "torch")],
)
def test_a_whole_pretrain_publishes_every_step(work, tp, joined):
    driftless = binding.driftless()
    python = environment_python("bridge")
    env = environment(PYTHONPATH=f"{module_for(python)}:{HERE}")
    line = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    config = work / "driftless.yaml"
    config.write_text("threads: 1\n" + (hub_yaml(work) if joined == "hub" else ""))
    line += ["--master-port", env["MASTER_PORT"], HERE / "bridge_pretrain.py", work, tp, config]
    result = jobs.finish(jobs.start([*map(str, line)], env=env), 300)
    assert result.returncode == 0, shown(result)
    assert result.stdout.count("TRAINED") == 2

    steps = [dict(np.load(work / f"step{number}.npz")) for number in range(5)]
    for number, wanted in enumerate(steps):  # one by one: a receiver would fold them into one
        same(held_at(driftless, work, number), wanted)
    changed = [any((a[n] != b[n]).any() for n in a) for a, b in zip(steps, steps[1:], strict=False)]
    assert all(changed), "a step of training changed nothing"


def held_at(driftless, work, number):
    """The weights of a rollout when the run has so many versions."""
    road = work / f"road{number}"
    later = [f"weight_v{each:06d}" for each in range(number + 1, 100)]
    shutil.copytree(work / "road", road, ignore=shutil.ignore_patterns("closed.json", *later))
    target = driftless.OwnedTarget(work / "model")
    with driftless.Job(binding.config(driftless, road), "rollout", launched=False) as job:
        receiver = driftless.Receiver(job, target)
        if number > 0:
            assert receiver.stage(timeout_s=60)
            receiver.commit()
        assert receiver.version == number
    return target


def same(target, wanted):
    assert {spec.name for spec in target.layout.tensors} == set(wanted)
    for name, bits in wanted.items():
        assert target.tensor(name).tobytes() == bits.tobytes(), name


def module_for(python):
    """The package with the native module for another Python, and with the library of the hub; made
    once. It compiles with the same paths and flags as build/, so that ccache shares the objects."""
    folder = REPOSITORY / "build-python3.12"
    found = subprocess.run([python, "-m", "pybind11", "--cmakedir"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    line = ["cmake", "-S", REPOSITORY, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    line += [f"-DPython_EXECUTABLE={python}", f"-Dpybind11_DIR={found.stdout.strip()}"]
    line += ["-DDRIFTLESS_BUILD_TESTS=OFF", *os.environ.get("CMAKE_FLAGS", "").split()]
    targets = ["driftless_native", "driftless_peer_road_library"]
    for each in (line, ["cmake", "--build", folder, "-j2", "--target", *targets]):
        made = subprocess.run(each, capture_output=True, text=True, timeout=1800)
        assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    return folder / "python"


def test_the_callback_follows_steps_and_leaves_out_skipped_ones(monkeypatch, work):
    """With the names and the context that Megatron-Bridge passes to callbacks; runs also without
    Megatron-Bridge."""
    binding.driftless()  # skips if there is none
    made = []

    class Session:
        def __init__(self, model, options, args, hf_config, optimizer, on_record=None):
            made.append(self)
            self.model, self.steps, self.closed = model, [], False
            self.optimizer = optimizer

        def after_step(self, successful):
            self.steps.append(successful)

        def close(self):
            self.closed = True

    stub = types.ModuleType("driftless.megatron.session")
    stub.Session = Session
    monkeypatch.setitem(sys.modules, "driftless.megatron.session", stub)
    monkeypatch.delitem(sys.modules, "driftless.megatron.callback", raising=False)
    from driftless.megatron.callback import WeightUpdates

    flags = types.SimpleNamespace(
        update_weight_mode="delta", update_weight_disk_dir=str(work / "road")
    )
    callback = WeightUpdates(flags)
    context = types.SimpleNamespace(model=["chunk"], optimizer="its own", skipped_iter=None)
    callback.on_train_start(context)
    for context.skipped_iter in (False, True, False):
        callback.on_train_step_end(context)
    callback.on_train_end(context)
    assert made[0].model == ["chunk"] and made[0].steps == [True, False, True] and made[0].closed
    assert made[0].optimizer == "its own"

    off = WeightUpdates(types.SimpleNamespace())
    off.on_train_start(context)
    off.on_train_step_end(context)
    off.on_train_end(context)
    assert len(made) == 1 and off.session is None

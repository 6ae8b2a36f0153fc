# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge, where it can be installed: the same tensors, bit for bit; and its callbacks."""

import types

import jobs
import pytest
from megatron_jobs import HERE, PACKAGE, environment, environment_python, mpirun

LAYOUTS = {"tp2_pp2": (4, "qwen3", 2, 2, 1), "ep2": (2, "qwen3_moe", 1, 1, 2)}


@pytest.mark.long  # installs an environment of its own
@pytest.mark.parametrize("layout", LAYOUTS)
def test_our_export_is_megatron_bridges_and_it_calls_us(work, layout):
    jobs.need_mpirun()
    ranks, family, *parallel = LAYOUTS[layout]
    python = environment_python("bridge")
    line = mpirun((ranks, python, HERE / "bridge_compare.py", work, family, *parallel))
    env = environment(PYTHONPATH=str(HERE), DRIFTLESS_PYTHON_PACKAGE=str(PACKAGE))
    result = jobs.finish(jobs.start(line, env=env), 300)
    assert result.returncode == 0, result.stderr[-6000:]
    assert result.stdout.count("SAME ") == parallel[1]
    assert result.stdout.count("CALLED") == ranks


def test_the_callback_follows_steps_and_leaves_out_skipped_ones(monkeypatch):
    """By the names and the context that Megatron-Bridge gives its callbacks: also where that cannot
    be installed."""
    import sys

    sys.path.insert(0, str(PACKAGE))
    pytest.importorskip("driftless.megatron", reason="the Python module is not built")
    made = []

    class Session:
        def __init__(self, model, options, args, hf_config):
            made.append(self)
            self.model, self.steps, self.closed = model, [], False

        def after_step(self, successful):
            self.steps.append(successful)

        def close(self):
            self.closed = True

    stub = types.ModuleType("driftless.megatron.session")
    stub.Session = Session
    monkeypatch.setitem(sys.modules, "driftless.megatron.session", stub)
    monkeypatch.delitem(sys.modules, "driftless.megatron.callback", raising=False)
    from driftless.megatron.callback import WeightUpdates

    flags = types.SimpleNamespace(update_weight_mode="delta", update_weight_transport="mpi_rma")
    callback = WeightUpdates(flags)
    context = types.SimpleNamespace(model=["chunk"], optimizer=None, skipped_iter=None)
    callback.on_train_start(context)
    for context.skipped_iter in (False, True, False):
        callback.on_train_step_end(context)
    callback.on_train_end(context)
    assert made[0].model == ["chunk"] and made[0].steps == [True, False, True] and made[0].closed

    off = WeightUpdates(types.SimpleNamespace())
    off.on_train_start(context)
    off.on_train_step_end(context)
    off.on_train_end(context)
    assert len(made) == 1 and off.session is None

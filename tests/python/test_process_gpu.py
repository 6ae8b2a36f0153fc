# SPDX-License-Identifier: Apache-2.0
"""An engine's worker, and a trainer, use their process' current GPU. Tested on machines without
these GPUs: the road's error names the number. If tensors are on a GPU, that GPU counts;
tests/unit/plugin/config_test.cpp tests how the number reaches the road."""

import subprocess
import sys

import pytest

import binding
import jobs

binding.driftless()  # skips if there is none

# torch as in the process of rank 902, whose current GPU is number 902.
TORCH = """
import contextlib, sys, types
class Cuda:
    def __init__(self, used): self.used = used
    def is_initialized(self): return self.used
    def current_device(self):
        assert self.used, "torch would begin to use a GPU"
        return 902
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = Cuda(sys.argv[1] == "used")
torch.no_grad, torch.set_grad_enabled = contextlib.nullcontext, lambda enabled: None
import driftless
config = open(sys.argv[2]).read()
"""
WORKER = """
from driftless.engines.rank_receiver import RankReceiver
from driftless.engines.target import HeldTarget
rank = RankReceiver(2, lambda chunk_bytes: HeldTarget(driftless.OwnedTarget()))
print(rank.open(config)["error"])
"""
TRAINER = """
class Weights:
    def tensors(self): return [driftless.TensorSpec("a", "F32", [4])]
    def visit(self): yield [(0, bytearray(16))]
job = driftless.Job(driftless.Config.parse(config), "trainer", launched=False)
try: driftless.Publisher(job, Weights())
except driftless.Error as refused: print(refused)
"""


@pytest.mark.parametrize("role", [WORKER, TRAINER], ids=["worker", "trainer"])
@pytest.mark.parametrize(
    "used, setting, number",
    [("used", "", 902), ("used", "gpu: { device: auto }", 902), ("used", "gpu: { device: 901 }", 901),
     ("unused", "gpu: { device: 903 }", 903)],
)  # fmt: skip
def test_a_process_takes_the_gpu_that_it_computes_with(work, role, used, setting, number):
    jobs.need("nccl")
    token, config = work / "token", work / "job.yaml"
    token.write_text("a" * 64)
    token.chmod(0o600)
    config.write_text(
        "road: { kind: nccl, nccl: { rendezvous: hub } }\n"
        f"hub: {{ address: '127.0.0.1:9', token_file: {token} }}\n{setting}\n"
    )
    line = [sys.executable, "-c", TORCH + role, used, config]
    env = jobs.environment() | {"PYTHONPATH": str(binding.PACKAGE)}
    ended = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300)
    if "NCCL is needed and cannot be" in ended.stdout:
        pytest.skip(ended.stdout.strip())
    assert f"there is no GPU {number} here" in ended.stdout, ended.stdout + ended.stderr

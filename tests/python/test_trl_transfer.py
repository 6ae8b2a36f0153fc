# SPDX-License-Identifier: Apache-2.0
"""driftless.trl.WeightTransfer, called in the same order as by TRL's asynchronous trainers."""

import subprocess
import sys
from pathlib import Path

import binding

sys.path.insert(0, str(Path(__file__).resolve().parent / "megatron"))
import megatron_jobs  # noqa: E402

binding.driftless()  # skips if there is none

TRAINER = """
import json, sys, threading
import torch
from safetensors.torch import save_file
import driftless, driftless.trl
from driftless.errors import DeadlineExceededError, WrongBaseError, WrongLayoutError

work = sys.argv[1]
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Embedding(40, 16), torch.nn.Linear(16, 24), torch.nn.Linear(24, 40, bias=False))
model[1].bias.requires_grad_(False)                         # frozen: never sent
state = {n: p.detach().to(torch.bfloat16) for n, p in model.named_parameters()}
for n, p in model.named_parameters(): p.data = state[n].float()
save_file({**state, "lm_head.copy": state["0.weight"].clone()}, work + "/model.safetensors")
config = driftless.Config.parse("road: { kind: shared_fs, shared_fs: { dir: %s/road } }" % work, [])
sent = lambda: ((n, p) for n, p in model.named_parameters() if p.requires_grad)

transfer = driftless.trl.WeightTransfer(config, work, timeout_s=60)
transfer.init_weight_transfer()

held = {n: tensor.clone() for n, tensor in state.items()}   # with the bias, which TRL never sends
held["lm_head.copy"] = state["0.weight"].clone()
failed = []
def rollout():
    try:
        job = driftless.Job(config, "rollout", launched=False)
        receiver = driftless.Receiver(job, driftless.MemoryTarget(held, version=0), id="one")
        while receiver.end() is None:
            if receiver.stage(timeout_s=0.2): receiver.commit()
        job.close()
    except BaseException as error:
        failed.append(error)
thread = threading.Thread(target=rollout)
thread.start()

def sync():
    transfer.pause(); transfer.send_weights(sent()); transfer.resume()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(held[name], parameter.detach().to(torch.bfloat16)), name

optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
sync()
for step in range(5):
    optimizer.zero_grad()
    model(torch.randint(40, (9,))).square().mean().backward()
    optimizer.step()
    sync()
assert transfer.last.version == 6, transfer.last
record = json.load(open(work + "/road/run.json"))["unpublished"]
assert [each["name"] for each in record] == ["1.bias", "lm_head.copy"], record
for name in ("1.bias", "lm_head.copy"):                     # one that is not the base's
    other = {n: tensor.clone() for n, tensor in held.items()}
    for each in held: other[each].copy_(state.get(each, state["0.weight"]))
    other[name].view(torch.int16)[0] ^= 1
    try:
        with driftless.Job(config, "rollout", launched=False) as job:
            driftless.Receiver(job, driftless.MemoryTarget(other, version=0), id="two")
        raise SystemExit(f"a changed {name} was taken")
    except WrongBaseError as error:
        assert f"'{name}', which run" in str(error), error

taken = []
def strange():
    for name, parameter in [("nobody.weight", model[1].weight), *sent()]:
        taken.append(name)
        yield name, parameter
try:
    transfer.send_weights(strange())
    raise SystemExit("an unknown tensor was accepted")
except WrongLayoutError as error:
    assert "nobody.weight" in str(error) and len(taken) == 4, (error, taken)
transfer._wait_for, transfer._timeout_s = 2, 0.3
try:
    transfer.send_weights(sent())
    raise SystemExit("it did not wait for receivers")
except DeadlineExceededError as error:
    assert "one: version" in str(error), error
transfer.destroy()
thread.join(240)
assert not failed and not thread.is_alive(), failed
print("all versions held")
"""


def test_every_sync_is_what_the_engine_holds(work):
    env = megatron_jobs.environment()
    line = [megatron_jobs.venv_python(), "-c", TRAINER, str(work)]
    ended = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.strip().endswith("all versions held")


LEFT_BEHIND = """
import glob, os, shutil, subprocess, sys
import torch
from safetensors.torch import save_file
import driftless, driftless.trl
from driftless.errors import DeadlineExceededError

work = sys.argv[1]
torch.manual_seed(1)
model = torch.nn.Linear(16, 24)
save_file({n: p.detach().to(torch.bfloat16) for n, p in model.named_parameters()}, work + "/model.safetensors")
ROAD = "road: { kind: shared_fs, shared_fs: { dir: %s/road } }" % work
FOLLOW = '''
import sys
from safetensors.torch import load_file
import driftless
job = driftless.Job(driftless.Config.parse(sys.argv[2], []), "rollout", launched=False)
held = load_file(sys.argv[1] + "/model.safetensors")
receiver = driftless.Receiver(job, driftless.MemoryTarget(held, version=0), id="one")
while True:
    if receiver.stage(timeout_s=0.2): receiver.commit()
'''

def follow():
    return subprocess.Popen([sys.executable, "-c", FOLLOW, work, ROAD])
def run():
    transfer = driftless.trl.WeightTransfer(driftless.Config.parse(ROAD, []), work, timeout_s=60)
    transfer.init_weight_transfer()
    return transfer
def step():
    with torch.no_grad():
        for p in model.parameters(): p.add_(torch.randn_like(p))
    return model.named_parameters()

first, receiver = run(), follow()
for _ in range(2): first.send_weights(step())
receiver.kill(); receiver.wait()
first.destroy()
assert len(glob.glob(work + "/road/.receivers/*.json")) == 1
for path in glob.glob(work + "/road/*"):            # a new run; hidden files stay
    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

second = run()
second._timeout_s = 0.5
for number in range(3):
    try:
        second.send_weights(step())
        raise SystemExit("a dead receiver of an earlier run was counted")
    except DeadlineExceededError as error:
        assert "0 of 1" in str(error), error
receiver = follow()
second._timeout_s = 60
second.send_weights(step())
receiver.kill(); receiver.wait()
second.destroy()
print("counted by identity")
"""


def test_the_report_of_a_dead_receiver_of_an_earlier_run_is_not_counted(work):
    env = megatron_jobs.environment()
    line = [megatron_jobs.venv_python(), "-c", LEFT_BEHIND, str(work)]
    ended = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.strip().endswith("counted by identity")

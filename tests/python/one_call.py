# SPDX-License-Identifier: Apache-2.0
"""Trainers and rollouts that use one call each, as separate processes: test_one_call.py.

    one_call.py serve

A server that imports torch once. It reads a line of JSON and writes one: [what, argument, log, env]
starts a process that runs main(), and returns its number; ["poll", number] returns its exit code,
or null.

JOB: where, base, versions, fails_at, how, out, shape, dtype, target, timeout_s, slow_s. OUT gets
the weights that each process holds at the end, saved by torch.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import driftless
import driftless.engines.module_target
import driftless.torch


def module(job, seed=0):
    torch.manual_seed(seed)
    sizes = job.get("shape", [24, 16])
    model = torch.nn.Sequential(torch.nn.Linear(*sizes), torch.nn.LayerNorm(sizes[1]))
    if job.get("base"):
        found = load_file(Path(job["base"], "model.safetensors"))
        model.load_state_dict({name: tensor.float() for name, tensor in found.items()})
    return model.to(getattr(torch, job.get("dtype", "float32")))


def change(model, number):
    """Changes weights in place, as an optimizer does; so little that bfloat16 keeps some of
    them."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 1e-3


def fail(how):
    if how == "raise":
        raise RuntimeError("training failed")
    if how == "exit":
        sys.exit(1)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how in ("SIGKILL", "SIGTERM"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "return":  # returns without closing the run
        return True
    return False


def save(job, model):
    torch.save({n: t.to(torch.bfloat16) for n, t in model.state_dict().items()}, job["out"])


def versions(job, model, run):
    for number in range(1, job["versions"] + 1):
        change(model, number + job.get("first", 0))
        report = run.publish(step=number)
        print(json.dumps({"version": report.version, "run": run.run}), flush=True)
        time.sleep(job.get("slow_s", 0))
        if number == job.get("fails_at") and fail(job.get("how")):
            break


def publish(job):
    model = module(job)
    given = {"dtype": torch.bfloat16} if not job.get("base") else {"base": job["base"]}
    run = driftless.publish(model, job["where"], overrides=job.get("sets", []), **given)
    if job.get("how") == "return":
        versions(job, model, run)
        return
    with run:
        versions(job, model, run)
    save(job, model)


def follow(job):
    if job.get("target") == "dict":
        model = module(job).bfloat16()
        target = dict(model.state_dict())
    elif job.get("target"):
        model, target = None, job["target"]
    else:
        target = model = module(job, job.get("seed", 0))
    given = {"base": job["base"]} if job.get("base") and target is model else {}
    followed = driftless.follow(
        target, job["where"], timeout_s=job.get("timeout_s"), overrides=job.get("sets", []), **given
    )
    for update in followed:
        print(json.dumps({"version": update.version, "proven": followed.held.proven}), flush=True)
        if update.version >= job.get("fails_at", 1 << 30):
            fail(job["how"])
    if model is not None:
        save(job, model)
    print(json.dumps({"ended": followed.ended, "held": followed.held._asdict()}), flush=True)


def short(model, base, place):
    """Publishes with an optimizer, and leaves out a tensor that the base does not have."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()

    def without_bias(shard):
        return [] if shard.name == "bias" else [shard]

    run = driftless.publish(model, place, base=base, optimizer=optimizer, export=without_bias)
    step()
    step()
    assert run.version == run.last.version == 2
    run.close()
    run.close()
    step()  # publishes nothing any more
    held = load_file(Path(base, "model.safetensors"))
    with driftless.follow(held, place) as follower:
        assert list(follower) and follower.version == 2 and follower.held.digest == run.last.digest


def refuse(work):
    """Calls that must be refused: {case: [class, message]}."""
    work, soon, output = Path(work), ["deadlines.connect=500ms"], {}

    def checkpoint(name, tensors):
        (work / name).mkdir()
        save_file(tensors, work / name / "model.safetensors", {"format": "pt"})
        (work / name / "config.json").write_text("{}")
        return str(work / name)

    def tried(what, call, *arguments, **named):
        try:
            call(*arguments, overrides=soon, **named)
        except driftless.Error as error:
            output[what] = [type(error).__name__, str(error)]
        else:
            output[what] = ["", ""]

    model = torch.nn.Linear(8, 8)
    state = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    base = checkpoint("base", state)
    place = str(work / "run")
    tried("no base", driftless.publish, model, place, base=str(work / "nowhere"))
    other = checkpoint("fewer", {"weight": state["weight"]})
    tried("a name", driftless.publish, model, place, base=other)
    other = checkpoint("shape", state | {"weight": state["weight"][:4].contiguous()})
    tried("a shape", driftless.publish, model, place, base=other)
    other = checkpoint("type", state | {"weight": state["weight"].to(torch.float8_e4m3fn)})
    tried("a type", driftless.publish, model, place, base=other)
    tried("both", driftless.publish, model, place, base=base, dtype=torch.float16)
    assert not Path(place).exists()  # no refused call touched it

    with driftless.publish(model, place, base=base) as run:
        tried("a second writer", driftless.publish, model, place, base=base)
        with torch.no_grad():
            model.weight[0, 0] += 1
        run.publish()
        held = {name: tensor.clone() for name, tensor in state.items()}
        held["weight"][3, 3] += 1
        before = {name: tensor.clone() for name, tensor in held.items()}
        tried("other bits", driftless.follow, held, place)
        assert all(torch.equal(held[name], before[name]) for name in held)
        tried("other shapes", driftless.follow, {"weight": torch.zeros(4)}, place)
        tried("other types", driftless.follow, {n: t.float() for n, t in held.items()}, place)
        tried("another module", driftless.follow, torch.nn.Linear(8, 8), place, base=base)
        tried("nothing", driftless.follow, 7, place)
        tried("no checkpoint", driftless.follow, str(work / "nowhere"), place)
        tried("a dict's base", driftless.follow, held, place, base=base)
        tried("no engine", driftless.follow, "http://127.0.0.1:9", place)
        tried("an engine's base", driftless.follow, "http://127.0.0.1:9", place, base=base)
        # The run is unchanged: a holder of the base can follow it.
        held = dict(state)
        assert next(driftless.follow(held, place)).version == 1
        assert torch.equal(held["weight"], model.weight.bfloat16())
    assert (work / "run" / "closed.json").exists()
    short(model, checkpoint("only_weight", {"weight": state["weight"]}), str(work / "short"))
    moved = checkpoint("moved", {name: tensor + 1 for name, tensor in state.items()})
    tried("another base", driftless.publish, model, place, base=moved)
    tried("no run", driftless.follow, held, str(work / "empty"))
    print(json.dumps(output))


class Misused:
    """A run of two tensors of one shape, and the dict that holds its base."""

    def __init__(self, place, **given):
        self.place, self.model = str(place), torch.nn.ParameterDict(
            {name: torch.nn.Parameter(torch.randn(8, 8)) for name in ("a", "b")}
        )
        self.held = {name: t.detach().bfloat16() for name, t in self.model.items()}
        given = given or {"dtype": torch.bfloat16}
        self.run = driftless.publish(self.model, place, **given)

    def put(self, name, tensor):
        """Replaces the tensor of that name; adds it if there is none."""
        setattr(self.model, name, torch.nn.Parameter(tensor))

    def step(self, places=...):
        with torch.no_grad():
            self.model["a"][places] += 1
        return self.run.publish()

    def follower(self, **given):
        return driftless.follow(self.held, self.place, **given)

    def followed(self):
        """Asserts that a follower that starts from the base gets the model's weights."""
        held = {name: tensor.clone() for name, tensor in self.held.items()}
        with driftless.follow(held, self.place) as follower:
            while follower.update() is not None:
                pass
            assert follower.held.proven
        return all(torch.equal(held[name], t.bfloat16()) for name, t in self.model.items())


def misuse(work):
    """Wrong uses of a run and of its follower: {case: [class, message]}. None of them ends with
    other weights than the trainer's, and none hangs."""
    work, output = Path(work), {}

    def tried(what, call, *arguments, **named):
        try:
            output[what] = ["", repr(call(*arguments, **named))]
        except (driftless.Error, KeyboardInterrupt) as error:
            output[what] = [type(error).__name__, str(error)]

    changes = {
        "order": lambda model, run: (model.__delitem__("a"), run.put("a", torch.zeros(8, 8))),
        "another name": lambda model, run: (model.__delitem__("b"), run.put("c", torch.zeros(8, 8))),
        "one more": lambda model, run: run.put("c", torch.zeros(8, 8)),
        "a tie": lambda model, run: model.__setitem__("b", model["a"]),
        "another shape": lambda model, run: run.put("b", torch.zeros(9, 8)),
    }
    for what, change in changes.items():
        one = Misused(work / what)
        one.step()
        change(one.model, one)
        tried(what, one.run.publish)
        tried(what + ", again", one.run.publish)
        assert one.follower().update().version == 1
        one.run.leave()

    empty = torch.nn.Linear(2, 2, device="meta")
    tried("no values", driftless.publish, empty, work / "meta")

    one = Misused(work / "right")
    one.put("a", torch.randn(8, 8))  # replaced tensors are read
    one.run.publish()
    one.model["b"].data = torch.randn(8, 8)
    one.model.half()  # cast as before
    one.run.publish()
    assert one.followed()
    visit = one.run._source.visit

    def interrupted():
        yield next(iter(visit()))
        raise KeyboardInterrupt

    one.run._source.visit = interrupted
    tried("Ctrl-C", one.step)
    one.run._source.visit = visit
    one.run.publish()
    assert one.followed()
    child = os.fork()
    if child == 0:
        try:
            one.run.publish()
        except driftless.Error:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    one.step()
    assert one.followed()
    one.run.close()
    tried("closed", one.run.publish)

    # The follower's side: foreign writes into its weights; another run in the same place.
    one = Misused(work / "followed")
    follower = one.follower(overrides=["deadlines.fetch=1s"])
    one.held["a"][0, 0] += 1
    one.step((3, 3))
    tried("written by others", follower.update, 30)
    tried("no full version", follower.update, 30)
    one.step()  # the follower has asked for a full version
    assert follower.update(30).version == 2
    assert all(torch.equal(one.held[n], t.bfloat16()) for n, t in one.model.items())
    one.run.leave()
    shutil.rmtree(work / "followed")
    Misused(work / "followed").run.close()
    before = {name: tensor.clone() for name, tensor in one.held.items()}
    tried("another run", lambda: [*follower])
    assert all(torch.equal(one.held[name], before[name]) for name in before)
    print(json.dumps(output))


def ranks(job):
    """FSDP2 ranks: each publishes its shards; if one fails, the run does not end."""
    dist.init_process_group("gloo")
    model = module(job)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    fails = job.get("how") and dist.get_rank() == job["rank"]
    with driftless.publish(
        model, job["where"], base=job["base"], overrides=job.get("sets", [])
    ) as run:
        for number in range(1, job["versions"] + 1):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.to_local().add_(1e-3 * number)
            run.publish(step=number)
        if fails:
            fail(job["how"])
    state = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    if dist.get_rank() == 0:
        torch.save({name: tensor.bfloat16() for name, tensor in state.items()}, job["out"])
    dist.destroy_process_group()


def main(what, given):
    if what in ("refuse", "misuse"):
        {"refuse": refuse, "misuse": misuse}[what](given)
    else:
        {"publish": publish, "follow": follow, "ranks": ranks}[what](
            json.loads(Path(given).read_text())
        )


def serve():
    """Returns in every process that it starts."""
    for line in sys.stdin:
        what, *given = json.loads(line)
        if what == "poll":
            done, status = os.waitpid(given[0], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if done else None), flush=True)
            continue
        number = os.fork()
        if number == 0:
            return what, *given
        print(number, flush=True)
    sys.exit(0)


if __name__ == "__main__":
    what, given, log, env = serve()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(env)
    main(what, given)

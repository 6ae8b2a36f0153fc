# SPDX-License-Identifier: Apache-2.0
"""Additions of the tests to vLLM's workers: checksums, a fresh load beside the engine, and
faults."""

import copy
import hashlib
import json
import os
from functools import partial
from types import SimpleNamespace

import torch
from driftless.engines.vllm import WorkerExtension

# Fused from several checkpoint tensors, some of which change with every version.
PARAMETER = "model.layers.1.self_attn.qkv_proj.weight"


# Attributes that SGLang computes from parameters after loading; vLLM's are parameters.
DERIVED = ("w_kc", "w_vc")


def checksums(model):
    """Checksums of all parameters and buffers, and of the tensors computed from them."""
    found, tensors = {}, dict(model.state_dict())
    for name, layer in model.named_modules():
        kept = {f"{name}.{key}": layer.__dict__.get(key) for key in DERIVED}
        tensors |= {key: tensor for key, tensor in kept.items() if tensor is not None}
    for name, tensor in tensors.items():
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        shape = "x".join(map(str, tensor.shape))
        found[name] = f"{shape} {tensor.dtype} {hashlib.sha256(data).hexdigest()}"
    return found


class Probe(WorkerExtension):
    def probe(self, method, arguments, nonce):
        """Calls another method, and never raises; the nonce identifies the call."""
        try:
            return {"nonce": nonce, "value": getattr(self, method)(**arguments)}
        except Exception as problem:
            return {"nonce": nonce, "error": repr(problem)}

    def probe_nothing(self):
        return None

    def probe_checksums(self):
        return checksums(self.model_runner.get_model())

    def probe_fresh(self, path):
        return checksums(self._fresh(path))

    def _fresh(self, path):
        """A second model that vLLM's own loader makes from `path`, in this process."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model

        config = copy.copy(self.vllm_config)
        config.compilation_config = copy.copy(config.compilation_config)
        config.compilation_config.static_forward_context = {}
        config.model_config = copy.copy(config.model_config)
        config.model_config.model = path
        with set_current_vllm_config(config):
            return get_model(vllm_config=config)

    def probe_base(self, path):
        load = None
        if self.vllm_config.quant_config is not None:  # its parameters have lost their loaders
            load = partial(self.reload_weights, weights_path=path)
        model, receiver = self.model_runner.get_model(), self._driftless_receiver()
        return back_to_base(model, receiver, path, load)

    def probe_addresses(self):
        """The addresses of the parameters: CUDA graphs record them."""
        model = self.model_runner.get_model()
        return {name: each.data_ptr() for name, each in model.named_parameters()}

    def probe_ways(self):
        """tensor -> (way, reason)"""
        ways = self._driftless_receiver().target.ways
        return {name: (way.way, way.reason) for name, way in ways.items()}

    def probe_derived(self):
        """tensor -> the function that computes it, as the target reports it."""
        target = self._driftless_receiver().target
        return target._made.writer.derived.names if hasattr(target, "_made") else {}

    def probe_rebind(self, parameter):
        """Replaces a parameter by another tensor with the same values."""
        owner, _, name = parameter.rpartition(".")
        module = self.model_runner.get_model().get_submodule(owner)
        old = getattr(module, name)
        new = torch.Tensor._make_subclass(type(old), old.data.clone(), False)
        new.__dict__.update(old.__dict__)
        setattr(module, name, new)

    def probe_flip(self, rank, parameter, place=None):
        if self.rank == rank:
            flip(self.model_runner.get_model(), parameter, place)

    def probe_untouched(self, paths):
        return untouched(*(self._fresh(path) for path in paths))

    def probe_rearrange(self, path, rows):
        """Does what vLLM's EPLB does, which needs a GPU: loads other experts of the checkpoint
        `path` into this rank's slots, then writes the runner's table. Without `rows` it removes the
        table."""
        model, runner = self.model_runner.get_model(), self.model_runner
        if rows is None:
            runner.eplb_state = None
            return
        rearranged(model, path, rows, write=True)
        state = SimpleNamespace(model=model, physical_to_logical_map=torch.tensor(rows))
        runner.eplb_state = SimpleNamespace(model_states={"model": state})

    def probe_rearranged(self, path, rows):
        return rearranged(self.model_runner.get_model(), path, rows, write=False)

    def probe_pid(self):
        return os.getpid()

    def probe_raise(self, rank):
        """Raises on one rank, which an extension must never do: later replies get out of step."""
        if self.rank == rank:
            raise RuntimeError(f"rank {rank} raises")
        return {"rank": self.rank}

    def probe_fault(self, rank, point, path=""):
        """Makes this rank's next commit fail: before it writes, while it writes, or after it has
        written (the rank is then at the new version, and reports a failure). "torn": every commit
        fails and cannot be undone, as long as the file `path` exists."""
        if self.rank == rank:
            install(self._driftless_receiver(), point, self.model_runner.get_model(), path)
        return {"rank": self.rank}


def flip(model, parameter, place=None):
    """Flips one bit in memory, unnoticed by versions and by torch."""
    data = dict(model.named_parameters())[parameter].data
    place = data.numel() // 2 + 1 if place is None else place
    bits(data)[place] ^= 1


def bits(data):
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[data.element_size()]
    return data.view(-1).view(whole)


def untouched(model, other):
    """One place in each parameter at which two models have the same bits."""
    found, generator = {}, torch.Generator().manual_seed(5)
    others = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        same = (bits(parameter.data) == bits(others[name].data)).nonzero().view(-1)
        found[name] = int(same[torch.randint(len(same), (1,), generator=generator)])
    return found


def rearranged(model, path, rows, write):
    """The parameters whose slots do not hold those experts of the checkpoint; with `write`, writes
    them first."""
    from safetensors.torch import load_file

    tensors, others = load_file(f"{path}/model.safetensors"), []
    for number, (layer, row) in enumerate(zip(model.moe_layers, rows, strict=True)):
        weights = {n.rpartition(".")[2]: p.data for n, p in layer.named_parameters()}
        own = weights["w13_weight"].shape[0]
        first = own * torch.distributed.get_rank()
        for slot, expert in enumerate(row[first : first + own]):
            at = f"model.layers.{number}.mlp.experts.{expert}."
            parts = [tensors[f"{at}{name}_proj.weight"] for name in ("gate", "up", "down")]
            for name, part in (("w13_weight", torch.cat(parts[:2])), ("w2_weight", parts[2])):
                if write:
                    weights[name][slot].copy_(part)
                elif not torch.equal(weights[name][slot], part.to(weights[name].dtype)):
                    others.append(f"layer {number}, slot {first + slot}: {name}")
    return others


def back_to_base(model, receiver, path, load=None):
    """Loads the weights of `path`, and resets the receiver."""
    from safetensors.torch import load_file

    if receiver is not None:
        closed = receiver.close()
        assert closed["state"] == "closed", closed["error"]
        receiver.__init__(receiver.rank, receiver.make_target, receiver.settings)
    with torch.no_grad():
        if load is not None:
            load()
        else:
            model.load_weights(load_file(f"{path}/model.safetensors").items())
    return {}


def install(receiver, point, model, path=""):
    """Makes the next commit fail; "torn": every commit, as long as the file `path` exists."""
    worker = receiver.worker
    if point == "reload":
        return fail_reload(model)
    if point == "torn":
        receiver.worker = Torn(worker, model, path)
        return None

    def failing(version, nonce, ticket):
        receiver.worker = worker
        if point == "before":
            return worker.refuse("injected before the commit", nonce)
        if point == "during":
            return commit_over_foreign_writes(model, worker, version, nonce, ticket)
        worker.commit(version, nonce, ticket)
        return worker.refuse("injected after the commit", nonce)

    receiver.worker = Wrapped(worker, failing)


class Wrapped:
    """The native worker, with a commit of the test's own."""

    def __init__(self, worker, commit):
        self._worker, self.commit = worker, commit

    def __getattr__(self, name):
        return getattr(self._worker, name)


class Torn(Wrapped):
    """As long as the file `path` exists, commits write a part, fail, and cannot be undone: the
    weights are no version. After that, staging restores them, and the next commit succeeds."""

    def __init__(self, worker, model, path):
        super().__init__(worker, self.tear)
        self._parameter, self._path = dict(model.named_parameters())[PARAMETER], path
        self._kept = None  # the parameter's old value
        self._torn = False

    def _with_torn_state(self, reply):
        if not self._torn:
            return reply
        return json.dumps({**json.loads(reply), "version": -1, "digest": "", "state": "failed",
                           "staged_version": None})  # fmt: skip

    def tear(self, version, nonce, ticket):
        if os.path.exists(self._path):
            self._torn = True
            if self._kept is None:
                self._kept = self._parameter.detach().clone()
            with torch.no_grad():
                self._parameter.data.add_(1)
            why = "injected in the middle of the commit, and it could not be undone"
            return self._with_torn_state(self._worker.refuse(why, nonce))
        reply = self._worker.commit(version, nonce, ticket)
        self._torn = self._torn and not json.loads(reply)["ok"]
        return self._with_torn_state(reply)

    def stage(self, timeout_s, nonce, ticket):
        if self._kept is not None and not os.path.exists(self._path):
            with torch.no_grad():
                self._parameter.data.copy_(self._kept)
            self._kept = None
        reply = json.loads(self._worker.stage(timeout_s, nonce, ticket))
        torn = {"version": -1, "digest": ""} if self._torn else {}
        return json.dumps({**reply, **torn})

    def status(self, nonce):
        reply = json.loads(self._worker.status(nonce))
        torn = {"version": -1, "digest": ""} if self._torn else {}
        return json.dumps({**reply, **torn})

    def rollback(self, version, nonce):
        if self._torn:
            return self._with_torn_state(self._worker.refuse("injected: there is nothing to take back", nonce))
        return self._worker.rollback(version, nonce)


def commit_over_foreign_writes(model, worker, *commit):
    """A parameter that the commit changes has a foreign write that torch did not count. The commit
    detects it midway and undoes its earlier writes. Then this undoes the foreign write."""
    parameter = dict(model.named_parameters())[PARAMETER].data
    kept = parameter.clone()
    with torch.no_grad():
        parameter += 1
        try:
            return worker.commit(*commit)
        finally:
            parameter.copy_(kept)


def fail_reload(model):
    """Makes the next reload fail after half of the weights."""
    load = model.load_weights

    def half(weights):
        del model.load_weights
        weights = list(weights)
        load(weights[: len(weights) // 2])
        raise RuntimeError("injected in a reload")

    model.load_weights = half

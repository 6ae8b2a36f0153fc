# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge's own export beside ours, of the same Megatron model on this rank: every tensor
of the stage must be the same, bit for bit.

    bridge_compare.py WORK FAMILY TP PP EP      under mpirun; prints "SAME <tensors>" on each source

Runs in an environment of its own (Python 3.12, for which the native module need not be built: only
the conversion is used, which is Python).
"""

import builtins
import importlib.machinery
import os
import sys
import types
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

PACKAGE = os.environ["DRIFTLESS_PYTHON_PACKAGE"]
package = types.ModuleType("driftless")
package.__path__ = [f"{PACKAGE}/driftless"]
package.TensorSpec = lambda name, *_: name
sys.modules["driftless"] = package
native = types.ModuleType("driftless._native")
native.TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
sys.modules["driftless._native"] = native

import cpu_shim  # noqa: E402  before megatron
import tiny_config  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from driftless.megatron import binding, topology  # noqa: E402
from driftless.megatron.export import StageExport  # noqa: E402
from driftless.megatron.maps import family_of  # noqa: E402
from driftless.megatron.session import torch_environment  # noqa: E402

# What Megatron-Bridge imports unconditionally and a CPU has not. megatron.core must not see it: it
# would take TransformerEngine for installed.
ABSENT = ("transformer_engine", "modelopt", "nvidia_resiliency_ext")


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Thing


class _Thing(metaclass=_Anything):
    def __init__(self, *_, **__):
        pass

    def __call__(self, *args, **_):
        return args[0] if len(args) == 1 and callable(args[0]) else self


class _AbsentModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Thing,), {})
        setattr(self, name, made)
        return made


def hide_absent():
    made, real = {}, builtins.__import__

    def module(name):
        if name not in made:
            made[name] = _AbsentModule(name)
            made[name].__path__ = []
            made[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(module(parent), last, made[name])
        return made[name]

    def importer(name, globals=None, locals=None, fromlist=(), level=0):
        asking = str((globals or {}).get("__name__", ""))
        if level == 0 and name.split(".")[0] in ABSENT and asking.startswith("megatron.bridge"):
            found = module(name)
            return found if fromlist else module(name.split(".")[0])
        return real(name, globals, locals, fromlist, level)

    builtins.__import__ = importer


def hf_model(path, family):
    """A small model of transformers' own, saved by rank 0."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = tiny_config.hf_config({"family": family})
    config = {k: v for k, v in config.items() if k != "model_type"} | {"mlp_only_layers": []}
    torch.manual_seed(1)
    if dist.get_rank() == 0:
        made = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**config)).to(torch.bfloat16)
        made.save_pretrained(path)
    dist.barrier()
    return config | {"model_type": family}


def megatron_model(path, tp, pp, ep):
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state as ps

    bridge = AutoBridge.from_hf_pretrained(str(path))
    cpu_shim.after_import()
    provider = bridge.to_megatron_provider(load_weights=True)
    provider.tensor_model_parallel_size, provider.pipeline_model_parallel_size = tp, pp
    provider.expert_model_parallel_size = ep
    provider.pipeline_dtype = provider.params_dtype = torch.bfloat16
    provider.bf16 = True
    provider.use_cpu_initialization = True
    for name in (
        "gradient_accumulation_fusion",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "persist_layer_norm",
        "apply_rope_fusion",
        "bias_activation_fusion",
        "moe_grouped_gemm",
        "moe_permute_fusion",
        "moe_router_fusion",
    ):
        if hasattr(provider, name):
            setattr(provider, name, False)
    from megatron.bridge.models.gpt_provider import local_layer_spec

    provider.transformer_layer_spec = local_layer_spec
    provider.finalize()
    ps.initialize_model_parallel(
        tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1 if ep > 1 else None
    )
    from megatron.core import tensor_parallel

    tensor_parallel.model_parallel_cuda_manual_seed(123)
    return bridge, provider.provide_distributed_model(
        wrap_with_ddp=False, use_cpu_initialization=True
    )


def unfused_norms(family):
    """The names of norms without TransformerEngine, which the bridge of a family does not list."""
    from megatron.bridge.models.conversion.param_mapping import AutoMapping
    from megatron.bridge.models.qwen.qwen3_bridge import Qwen3Bridge
    from megatron.bridge.models.qwen.qwen3_moe_bridge import Qwen3MoEBridge

    cls = {"qwen3": Qwen3Bridge, "qwen3_moe": Qwen3MoEBridge}[family]
    registry = cls.mapping_registry
    names = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm"}

    def extended(self):
        found = registry(self)
        more = [
            AutoMapping(f"decoder.layers.*.{m}.weight", f"model.layers.*.{h}.weight")
            for m, h in names.items()
        ]
        return type(found)(*found.mappings, *more)

    cls.mapping_registry = extended


def ours(model, config):
    """{name: tensor} of this stage, on its source; None elsewhere."""
    facts, sizes = topology.my_facts()
    stages = topology.stages_of(topology.gather_objects(facts), sizes)
    stage = stages[facts.pp]
    groups = topology.Groups(stages, 120)
    plan = binding.plan_of(family_of(config), model, sizes, stage.number)
    bound = binding.bind(plan, model, stage, facts.rank)
    if facts.rank not in stage.members:
        return None
    export = StageExport(bound, stage, groups, 1 << 16, torch.device("cpu"))
    if facts.rank != stage.source:
        export.serve()
        return None
    found = {export.specs[i]: t.clone() for batch in export.visit() for i, t in batch}
    export.finish()
    return found


def callback_steps(model):
    """What our callback tells its session when Megatron-Bridge's own manager fires it, with its own
    contexts: a step, a skipped one, a step. The session is one that notes: the native module need
    not be built for this Python."""
    from driftless.megatron import callback as ours
    from megatron.bridge.training.callbacks import CallbackContext, normalize_callbacks

    noted = []

    class Noting:
        def __init__(self, given, *_):
            noted.append(given is model)

        def after_step(self, successful):
            noted.append(successful)

        def close(self):
            noted.append("closed")

    ours.Session = Noting
    flags = types.SimpleNamespace(update_weight_mode="delta", update_weight_transport="mpi_rma")
    manager = normalize_callbacks([ours.WeightUpdates(flags)])
    manager.fire("on_train_start", CallbackContext(state=None, model=model))
    for skipped in (False, True, False):
        context = CallbackContext(state=None, model=model, skipped_iter=skipped)
        manager.fire("on_train_step_end", context)
    manager.fire("on_train_end", CallbackContext(state=None, model=model))
    return noted


def main():
    work, family, tp, pp, ep = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
    torch_environment()
    dist.init_process_group("gloo")
    cpu_shim.stub_triton()
    hide_absent()
    config = hf_model(work / "model", family)
    unfused_norms(family)
    bridge, model = megatron_model(work / "model", tp, pp, ep)
    model = model if isinstance(model, list) else [model]
    theirs = {
        w.param_name: w.weight
        for w in bridge.export_hf_weights(model, cpu=True, show_progress=False)
    }
    found = ours(model, config)
    names = topology.gather_objects(sorted(found or {}))
    assert sorted(n for one in names for n in one) == sorted(
        theirs
    ), "other names than Megatron-Bridge's"
    for name, tensor in (found or {}).items():
        assert torch.equal(
            tensor.view(torch.int16), theirs[name].to(tensor.dtype).view(torch.int16)
        ), name
    if found:
        print(f"SAME {len(found)}", flush=True)
    assert callback_steps(model) == [True, True, False, True, "closed"]
    print("CALLED", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge on a machine without a GPU: replaces imports that a CPU lacks; a small model."""

import builtins
import functools
import importlib.machinery
import types

import cpu_shim
import tiny_config
import torch
import torch.distributed as dist

# Modules that Megatron-Bridge imports unconditionally and that a CPU lacks. megatron.core must not
# see them: it would assume that TransformerEngine is installed.
ABSENT = ("transformer_engine", "modelopt", "nvidia_resiliency_ext", "megatron.energon")


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
        absent = any(f"{name}.".startswith(f"{one}.") for one in ABSENT)
        if level == 0 and absent and asking.startswith("megatron.bridge"):
            found = module(name)
            return found if fromlist else module(name.split(".")[0])
        return real(name, globals, locals, fromlist, level)

    builtins.__import__ = importer


def hf_model(path, family):
    """A small model of transformers, saved by rank 0."""
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


def provider_of(path, tp, pp, ep):
    """Megatron-Bridge's provider, without the features that a CPU lacks."""
    from megatron.bridge import AutoBridge
    from megatron.bridge.models.gpt_provider import local_layer_spec

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
    provider.transformer_layer_spec = local_layer_spec
    return bridge, provider


def unfused_norms(family):
    """The names of norms without TransformerEngine, which a family's bridge does not list."""
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


def allow_training():
    """Lets pretrain() start without CUDA, and without compiling helpers that the wheel of
    megatron-core has compiled, but without their Makefile. The last patch answers ModelOpt's
    question whether the model is a student."""
    from megatron.bridge.training import initialize, setup, train

    initialize.compile_helpers = lambda: None

    setup.initialize_megatron = functools.partial(setup.initialize_megatron, allow_no_cuda=True)
    train.get_tensor_shapes_adjust_fn_for_distillation = lambda *_, **__: None

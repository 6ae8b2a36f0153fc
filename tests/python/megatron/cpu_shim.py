# SPDX-License-Identifier: Apache-2.0
"""Lets megatron-core train on a machine without a GPU: its calls to torch.cuda use the CPU, with
gloo. For tests only. Of Megatron's own code only the random-number tracker and one copy to the host
are replaced, because they need CUDA.

    import cpu_shim              before megatron
    cpu_shim.after_import()      once megatron.core is imported
"""

import contextlib
import functools
import os
import types
import typing

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class Inert:
    """A stream or an event that does nothing, and whose work is always complete."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: Inert()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def _constant(value):
    return lambda *_, **__: value


_ANSWERS = {
    "current_device": _constant(CPU),
    "current_stream": lambda *_, **__: Inert(),
    "default_stream": lambda *_, **__: Inert(),
    "device_count": lambda: int(
        os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1))
    ),
    "empty_cache": _constant(None),
    "get_device_capability": _constant((9, 0)),
    "get_device_name": _constant("cpu"),
    "get_device_properties": _constant(
        types.SimpleNamespace(
            major=9, minor=0, name="cpu", total_memory=1 << 34, multi_processor_count=1
        )
    ),
    "get_rng_state": lambda *_, **__: torch.get_rng_state(),
    "is_current_stream_capturing": _constant(False),
    "manual_seed": lambda seed: torch.manual_seed(seed),
    "mem_get_info": _constant((1 << 34, 1 << 34)),
    "memory_stats": lambda *_, **__: __import__("collections").defaultdict(int),
    "set_device": _constant(None),
    "set_rng_state": _constant(None),
    "synchronize": _constant(None),
}
for _name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
    _ANSWERS[_name] = _constant(0)
_ANSWERS["reset_peak_memory_stats"] = _constant(None)

for _name, _answer in _ANSWERS.items():
    setattr(torch.cuda, _name, _answer)
torch.cuda.Stream = torch.cuda.Event = Inert
torch.cuda.stream = lambda stream: contextlib.nullcontext()


class DeviceIsCpu(TorchFunctionMode):
    """Makes device='cuda' the CPU, x.cuda() return x, and type() return what Megatron expects."""

    def __torch_function__(self, function, _types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.")
        return function(*args, **kwargs)


_mode = DeviceIsCpu()


def after_import():
    import megatron.core.tensor_parallel.random as random
    import megatron.core.transformer.moe.token_dispatcher as dispatcher

    @contextlib.contextmanager
    def fork(self, name=None):
        yield

    def to_host(tensor, as_numpy=False, record_stream=False):
        return tensor.numpy() if torch.is_tensor(tensor) and as_numpy else tensor

    random.CudaRNGStatesTracker.fork = fork
    random._set_cuda_rng_state = _constant(None)
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    dispatcher.maybe_move_tensor_to_cpu = to_host
    _mode.__enter__()


def allow_megatron_training():
    """Lets megatron.training (Megatron-LM's scripts) start without CUDA."""
    import megatron.training.training as training

    training.initialize_megatron = functools.partial(
        training.initialize_megatron, allow_no_cuda=True
    )


class _Stub(types.ModuleType):
    """A module that has every name; as a decorator it returns the function unchanged."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self


def stub_triton():
    """Newer Megatron always imports triton, which does not exist for a CPU, and needs only a
    decorator of it. It also requires Python 3.12."""
    import importlib.machinery
    import importlib.util
    import sys

    if not hasattr(typing, "override"):
        typing.override = lambda function: function
    if importlib.util.find_spec("triton") is not None:
        return
    # Modules that check for triton must be imported before the stub.
    for name in ("_dynamo", "_inductor.utils", "_inductor.runtime.hints"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"torch.{name}")
    for name in (
        "",
        ".language",
        ".language.extra",
        ".language.extra.libdevice",
        ".language.extra.cuda",
        ".language.math",
        ".runtime",
        ".compiler",
        ".testing",
        ".tools",
    ):
        module = _Stub(f"triton{name}")
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    triton = sys.modules["triton"]
    triton.__version__ = "3.4.0"
    for decorator in ("autotune", "heuristics"):
        setattr(triton, decorator, lambda *_, **__: lambda function: function)
    triton.jit = lambda function=None, **__: function or (lambda inner: inner)

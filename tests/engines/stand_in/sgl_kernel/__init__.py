# SPDX-License-Identifier: Apache-2.0
"""Replaces `sgl_kernel`, which exists for GPUs and some CPUs only.

SGLang always imports it. Every name exists, as a class that cannot be called; the few functions
that SGLang's torch path on a CPU needs are implemented.
"""

import importlib.machinery
import os
import sys
import types

import torch

__version__ = "99.0.0"
__path__: list[str] = []


class Absent(type):
    """A missing name: usable as a type or a constant, equal to itself only, and raising its name
    when called."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = absent(f"{cls.__qualname__}.{name}")
        setattr(cls, name, made)
        return made

    def __call__(cls, *_, **__):
        raise NotImplementedError(f"{cls.__qualname__} is not in the stand-in for sgl_kernel")


def absent(name):
    return Absent(name.rsplit(".", 1)[-1], (), {"__qualname__": name})


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = absent(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class Submodules:
    """`import sgl_kernel.anything`."""

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(__name__ + "."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Submodules())
sys.modules[__name__].__class__ = Module


def assign_req_to_token_pool_cpu(requests, table, starts, ends, places, _width):
    """Writes the next places into row r of the table, from its start to its end."""
    taken = 0
    for row, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = end - start
        table[row, start:end] = places[taken : taken + count].to(table.dtype)
        taken += count


def _no_shared_memory(_size, _rank):
    os.environ["LOCAL_SIZE"] = "0"  # SGLang then uses gloo instead of its own kernels


_ops = torch.library.Library("sgl_kernel", "FRAGMENT")
for _schema, _function in (
    ("init_cpu_threads_env(str cores) -> ()", lambda _cores: None),
    ("initialize(int size, int rank) -> ()", _no_shared_memory),
):
    _ops.define(_schema)
    _ops.impl(_schema.split("(")[0], _function, "CompositeExplicitAutograd")

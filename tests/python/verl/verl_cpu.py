# SPDX-License-Identifier: Apache-2.0
"""The CPU as one of verl's platforms, in verl's own registry, which otherwise has only
accelerators.

Loaded by VERL_USE_EXTERNAL_MODULES=verl_cpu, chosen by VERL_PLATFORM=cpu.
"""

import contextlib
import types

import torch
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.plugin.platform.platform_base import PlatformBase

DEVICE = types.SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in ("current_device", "synchronize", "is_available")},
    empty_cache=lambda: None,
    set_device=lambda index: None,
    memory_allocated=lambda *_: 0,
    max_memory_allocated=lambda *_: 0,
    max_memory_reserved=lambda *_: 0,
    memory_reserved=lambda *_: 0,
    mem_get_info=lambda *_: (1 << 30, 1 << 30),
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    manual_seed_all=torch.manual_seed,
)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = vendor_name = "cpu"
    device_module = DEVICE

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def communication_backend_name(self):
        return "gloo"

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def get_device_capability(self, device_index=0):
        return None, None

    def visible_devices_envvar(self):
        return "NO_VISIBLE_DEVICES"

    def ray_resource_name(self):
        return "CPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    @contextlib.contextmanager
    def nvtx_range(self, msg):
        yield

    def nothing(self, *_, **__):
        return None

    set_device = synchronize = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing
    manual_seed_all = manual_seed

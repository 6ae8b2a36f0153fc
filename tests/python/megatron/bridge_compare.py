# SPDX-License-Identifier: Apache-2.0
"""Compares Megatron-Bridge's own export with ours, for the same Megatron model on this rank: every
tensor of the stage must be equal, bit for bit.

    bridge_compare.py WORK FAMILY TP PP EP      under mpirun; prints "SAME <tensors>" on each source
"""

import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import bridge_cpu  # noqa: E402  before megatron
import cpu_shim  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from driftless.megatron import binding, topology  # noqa: E402
from driftless.megatron.export import StageExport  # noqa: E402
from driftless.megatron.maps import family_of  # noqa: E402
from driftless.megatron import torch_environment  # noqa: E402


def megatron_model(path, tp, pp, ep):
    from megatron.core import parallel_state as ps

    bridge, provider = bridge_cpu.provider_of(path, tp, pp, ep)
    provider.finalize()
    ps.initialize_model_parallel(
        tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1 if ep > 1 else None
    )
    from megatron.core import tensor_parallel

    tensor_parallel.model_parallel_cuda_manual_seed(123)
    return bridge, provider.provide_distributed_model(
        wrap_with_ddp=False, use_cpu_initialization=True
    )


def ours(model, config):
    """{name: tensor} of this stage, on its source; None elsewhere."""
    facts, sizes = topology.my_facts()
    stages = topology.stages_of(topology.gather_objects(facts), sizes)
    stage = stages[facts.pp]
    groups = topology.Groups(stages, 120, every_rank=False)
    plan = binding.plan_of(family_of(config), model, sizes, stage.number)
    bound = binding.bind(plan, model, stage, facts.rank)
    if facts.rank not in stage.members:
        return None
    export = StageExport(bound, stage, groups, 1 << 16, torch.device("cpu"))
    if facts.rank != stage.source:
        export.serve()
        return None
    found = {export.specs[i].name: t.clone() for batch in export.visit() for i, t in batch}
    export.finish()
    return found


def main():
    work, family, tp, pp, ep = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
    torch_environment()
    dist.init_process_group("gloo")
    cpu_shim.stub_triton()
    bridge_cpu.hide_absent()
    config = bridge_cpu.hf_model(work / "model", family)
    bridge_cpu.unfused_norms(family)
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
    dist.barrier()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Megatron-Bridge's whole pretrain() on the CPU, with our callback: test_bridge.py.

    bridge_pretrain.py WORK TP CONFIG      under torchrun; prints "TRAINED" on each rank

Our callback publishes each step. After each step a second callback saves Megatron-Bridge's own
export of the model. cpu_shim replaces torch.cuda by the CPU; all other replacements are here.
"""

import sys
import types
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import bridge_cpu  # noqa: E402  before megatron
import cpu_shim  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

STEPS, LENGTH = 4, 16


def configured(provider):
    """A run on Megatron-Bridge's mock data."""
    from megatron.bridge.training import config as parts
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig

    provider.seq_length = LENGTH
    return parts.ConfigContainer(
        model=provider,
        train=parts.TrainingConfig(train_iters=STEPS, global_batch_size=4, micro_batch_size=1),
        validation=parts.ValidationConfig(eval_interval=STEPS, eval_iters=0),
        optimizer=OptimizerConfig(
            optimizer="adam", lr=2e-6, min_lr=1e-6, bf16=True, use_distributed_optimizer=True
        ),
        scheduler=parts.SchedulerConfig(
            lr_decay_style="constant", lr_decay_iters=STEPS, start_weight_decay=0.01,
            end_weight_decay=0.01,
        ),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True
        ),
        dataset=parts.GPTDatasetConfig(
            random_seed=1, seq_length=LENGTH, blend=None, blend_per_split=None, split="90,5,5",
            num_dataset_builder_threads=1, num_workers=0, dataloader_type="single",
            reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
        ),
        tokenizer=parts.TokenizerConfig(
            tokenizer_type="NullTokenizer", vocab_size=provider.vocab_size - 1
        ),
        checkpoint=parts.CheckpointConfig(save=None, load=None),
        logger=parts.LoggerConfig(log_interval=1),
        dist=parts.DistributedInitConfig(distributed_backend="gloo"),
        mixed_precision="bf16_mixed",
    )  # fmt: skip


class Keep:
    """Saves Megatron-Bridge's own export of the model after each step."""

    def __init__(self, bridge, work):
        self._bridge, self._work, self._steps = bridge, work, 0

    def on_train_start(self, context):
        self.keep(context)

    def on_train_step_end(self, context):
        for chunk in context.model:  # otherwise done by the next forward pass
            assert chunk.ddp_config.overlap_param_gather
            chunk.start_param_sync(force_sync=True)
        self.keep(context)

    def keep(self, context):
        weights = self._bridge.export_hf_weights(context.model, cpu=True, show_progress=False)
        found = {each.param_name: each.weight.view(torch.uint16).numpy() for each in weights}
        if dist.get_rank() == 0:
            numpy.savez(self._work / f"step{self._steps}.npz", **found)
        self._steps += 1


def main():
    work, tp = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    cpu_shim.stub_triton()
    bridge_cpu.hide_absent()
    bridge_cpu.hf_model(work / "model", "qwen3")
    bridge_cpu.unfused_norms("qwen3")
    bridge, provider = bridge_cpu.provider_of(work / "model", tp, 1, 1)

    import driftless.megatron
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    bridge_cpu.allow_training()
    flags = types.SimpleNamespace(
        update_weight_mode="delta", update_weight_transport="disk",
        update_weight_disk_dir=str(work / "road"), update_weight_strict=True,
        update_weight_hf_checkpoint=str(work / "model"), update_weight_config=sys.argv[3],
    )  # fmt: skip
    ours = driftless.megatron.WeightUpdates(flags)
    pretrain(configured(provider), forward_step, callbacks=[ours, Keep(bridge, work)])
    print("TRAINED", flush=True)


if __name__ == "__main__":
    main()

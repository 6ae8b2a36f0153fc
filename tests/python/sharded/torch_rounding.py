# SPDX-License-Identifier: Apache-2.0
"""A trainer without a snapshot whose float32 main weights torch itself rounds, and a rollout:
numbers of every class, without sweeps. Arguments: road, dtype of the weights, contiguous or
strided."""

import sys

import numpy
import torch

import driftless

road, dtype, strided = sys.argv[1], getattr(torch, sys.argv[2]), sys.argv[3] == "strided"
torch.manual_seed(1)
room = torch.zeros(40, 66 if strided else 33, dtype=dtype)
weight = torch.zeros(40, 33, dtype=dtype)
main = torch.randn(40, 33)
weight.copy_(main)
bits = main.view(torch.int32).numpy().view(numpy.uint32)
config = driftless.Config.parse(
    f"road: {{kind: shared_fs, shared_fs: {{ dir: {road} }}}}", ["capture.sweep_every=0"]
)
shards = [("w", weight, (40, 33), (0, 0))]
source = driftless.ShardedSource(shards)
held = {"w": weight.clone()}
classes = [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC12345, 0xFFFFFFFF, 0x7FA00000]
classes += [0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x7F7FFFFF, 0x7F7F8000, 0x7F800000]
classes += [0xFF800000, 0x33000000, 0x33000001, 0x387FE000, 0x387FF000, 0x477FE000, 0x477FEFFF]
classes += [0x477FF000, 0xC77FF000, 0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000, 0x00008000]
with (
    driftless.Job(config, "trainer", launched=False) as job,
    driftless.Job(config, "rollout", launched=False) as other,
    driftless.Publisher(job, source, snapshot="none") as publisher,
):
    receiver = driftless.Receiver(other, driftless.MemoryTarget(held, version=0))
    for step in range(6):
        at = 7 + 11 * step
        bits.reshape(-1)[at : at + len(classes)] = classes
        publisher.capture([(0, main)])
        if strided:
            weight.copy_(room[:, ::2].copy_(main))
        else:
            weight.copy_(main)
        publisher.publish(source)
        assert receiver.stage(timeout_s=60)
        receiver.commit()
        assert torch.equal(held["w"].view(torch.int16), weight.view(torch.int16)), step

# SPDX-License-Identifier: Apache-2.0
"""The usual torch code for the same work as gpu_bench: prints one JSON line per figure."""

import json
import statistics
from collections.abc import Callable

import torch

UNITS = 1_600_000_000
TENSORS = 24


def time_ms(work: Callable[[], object], runs: int = 7) -> float:
    times = []
    for i in range(runs + 2):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def show(work: str, ms: float) -> None:
    print(json.dumps({"torch": work, "ms": round(ms, 4)}), flush=True)


def main() -> None:
    each = UNITS // TENSORS
    before = [
        torch.randint(-30000, 30000, (each,), dtype=torch.int16, device="cuda").view(torch.bfloat16)
        for _ in range(TENSORS)
    ]
    after = []
    for tensor in before:
        changed = torch.rand(each, device="cuda") < 0.01
        after.append((tensor.view(torch.int16) ^ changed.to(torch.int16)).view(torch.bfloat16))
        del changed

    def diff(old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = (old.view(torch.int16) != new.view(torch.int16)).nonzero().view(-1)
        return positions, new[positions]

    def gaps(old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions, values = diff(old, new)
        steps = torch.diff(positions, prepend=positions.new_full((1,), -1)) - 1
        return steps.to(torch.uint16), values

    show("diff", time_ms(lambda: [diff(a, b) for a, b in zip(before, after)]))
    show("diff, gaps", time_ms(lambda: [gaps(a, b) for a, b in zip(before, after)]))
    host = [tensor.cpu().pin_memory() for tensor in before[:8]]

    def from_host() -> None:
        for old, new in zip(host, after):
            diff(old.to("cuda", non_blocking=True), new)

    show("diff, pinned host", time_ms(from_host, 3) * TENSORS / len(host))
    deltas = [diff(a, b) for a, b in zip(before, after)]
    show(
        "index_copy_",
        time_ms(lambda: [t.index_copy_(0, p, v) for t, (p, v) in zip(before, deltas)]),
    )
    masked = []
    for tensor, (positions, values) in zip(before, deltas):
        full = torch.full_like(tensor, float("nan"))
        full[positions] = values
        masked.append(full)

    def overwrite() -> None:
        for tensor, full in zip(before, masked):
            tensor.copy_(torch.where(torch.isnan(full), tensor, full))

    show("NaN-masked overwrite", time_ms(overwrite))


if __name__ == "__main__":
    main()

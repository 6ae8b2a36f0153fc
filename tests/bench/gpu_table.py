# SPDX-License-Identifier: Apache-2.0
"""Makes the table of docs/operate/numbers.md from the output of gpu_bench and torch_bench.py."""

import json
import sys

# For each figure: (its name in torch_bench.py, the time it is compared with, the limit of the ratio).
ASKED = {
    "diff, positions + values, 1 %": ("diff", "floor", 1.15),
    "diff, gaps + values, 1 %": ("diff, gaps", "floor", 1.2),
    "diff, gaps, 20000 tensors, 1 %": (None, "floor", 1.25),
    "diff, gaps, 0.1 %": (None, "floor", 1.1),
    "diff, gaps, 10 %": (None, "floor", 2.0),
    "diff, gaps, 100 %": (None, "floor", 6.0),
    "diff, snapshot in pinned memory": ("diff, pinned host", "floor", 1.1),
    "scatter from positions": ("index_copy_", "torch", 1.0),
    "check + scatter from gaps": ("index_copy_", "torch", 1.5),
    "masked overwrite": ("NaN-masked overwrite", "torch", 0.5),
    "digest, full sweep": (None, "floor", 1.3),
    "sweep of a fused, sliced module of 1061 M elements": (None, "floor", 1.5),
    "compare + quantize, linear, 1 % of bf16": (None, "floor", 1.6),
    "capture + measuring 1 % of the blocks": (None, "floor", 1.15),
    "a version with capture and FP8 blocks: the step's part": (None, "floor", 1.15),
    "commit of 1.7 M codes and 100 scales": (None, "floor", 1.0),
    "compact: diff + encode": (None, "floor", 6.0),
    "compact: decode into a staged update": (None, "floor", 3.0),
}


def nccl_table(rows: list[dict]) -> None:
    """The time from publish() to commit, per version: its parts, their sum, and the measured total."""
    published = {row["version"]: row for row in rows if row["nccl"] == "publish"}
    print("\nover NCCL, both processes on this GPU (ms)\n")
    print("| version | compare, frames | hash, broadcast | acks, seal | fetch | stage, prove | commit |"
          " sum | measured | measured / sum |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        if row["nccl"] != "commit" or row["version"] not in published:
            continue
        sent = published[row["version"]]
        parts = [sent["process_ms"], sent["flush_ms"], sent["seal_ms"], row["fetch_ms"], row["stage_ms"],
                 row["end"] - row["ready"]]
        took = row["end"] - sent["begin"]
        cells = " | ".join(f"{part:.2f}" for part in parts)
        print(f"| {row['version']} | {cells} | {sum(parts):.2f} | {took:.2f} |"
              f" {took / sum(parts):.3f} |")


def megatron_table(rows: list[dict]) -> None:
    print("\na step of Megatron with updates, mode delta, every step, over NCCL (ms)\n")
    print("| parameters | tokens | snapshot | changed | forward + backward | ours | share | gather |"
          " convert | diff | encode | send |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        parts = " | ".join(f"{ms:.2f}" for ms in row["split_ms"].values())
        print(f"| {row['parameters'] / 1e9:.2f} G | {row['tokens']} | {row['snapshot']} |"
              f" {row['density']:.2%} | {row['forward_backward_ms']:.1f} | {row['ours_ms']:.1f} |"
              f" {row['share']:.1%} | {parts} |")


def whole_step_table(rows: list[dict]) -> None:
    """The limits for `none`: 2 % of a step; 64 MiB and 16 bytes per change; and at most 1.5 times the
    snapshot on the device until a version is visible."""
    print("\nwhole steps of Megatron with and without updates, every step, over files in memory to a"
          " rollout in host memory (ms)\n")
    print("| snapshot | changed | step without | with | more | added | visible after | capture |"
          " sweep | MiB of changes | MiB more on the GPU | tensors resent | asked |")
    print("|---" * 13 + "|")
    today = next((row["visible_ms"] for row in rows if row["snapshot"] == "device"), None)
    for row in rows:
        asked = ""
        if row["snapshot"] == "none":
            changes = row["parameters"] * row["density"] * 16 / (1 << 20)
            late = today is not None and row["visible_ms"] > 1.5 * today
            kept = row["share"] <= 0.02 and row["captured_mib"] <= 64 + changes and not late
            asked = "ok" if kept else "MISSED"
        print(f"| {row['snapshot']} | {row['density']:.2%} | {row['plain_ms']:.1f} |"
              f" {row['step_ms']:.1f} | {row['share']:.1%} | {row['added_ms']:.1f} |"
              f" {row['visible_ms']:.1f} | {row['capture_ms']:.1f} | {row['sweep_ms']:.1f} |"
              f" {row['captured_mib']:.0f} | {row['gpu_mib']:.0f} | {row['resent']} | {asked} |")


def module_table(rows: list[dict]) -> None:
    """The limits: a pause of 3 ms with maps, and of half of torch's time with masked overwrite. Staging
    holds the GPU for at most 2 ms, and needs memory for the changes and at most one chunk."""
    print("\nan engine's module on this GPU, one rank of two, 1 % changed (ms)\n")
    print("| way | elements | changed | pause | of it writing | vLLM's way in torch | times faster |"
          " without its checks | times faster | staging | longest hold |"
          " nobody staging | longest gap | nobody staging | MiB of changes | with the chunk | taken | when opened | asked |")
    print("|---" * 19 + "|")
    for row in rows:
        fast = row["pause_ms"] <= 3 if row["way"] == "maps" else row["times_faster"] >= 2
        held = [row["longest_hold_ms"], row["longest_gap_ms"]]
        short = all(ms is None or ms <= 2 for ms in held)
        most = row["delta_mib"] + row["cap_mib"]
        asked = "ok" if fast and short and row["device_mib"] <= most else "MISSED"
        waits = (row[f"longest_{what}_ms{when}"] for what in ("hold", "gap") for when in ("", "_without"))
        shown = " | ".join("" if ms is None else f"{ms:.2f}" for ms in waits)
        print(f"| {row['way']} | {row['elements'] / 1e9:.2f} G | {row['changed'] / 1e6:.1f} M |"
              f" {row['pause_ms']:.2f} | {row['apply_ms']:.2f} | {row['usual_ms']:.1f} |"
              f" {row['times_faster']} | {row['usual_unchecked_ms']:.1f} |"
              f" {row['times_faster_unchecked']} | {row['stage_ms']:.0f} | {shown} |"
              f" {row['delta_mib']:.0f} | {most:.0f} | {row['device_mib']:.0f} |"
              f" {row['opening_mib']:.0f} | {asked} |")


def main() -> None:
    gpu, figures, torch, nccl, megatron, modules = "", [], {}, [], [], []
    whole_steps = []
    for line in open(sys.argv[1], encoding="utf-8"):
        row = json.loads(line)
        gpu = row.get("gpu", gpu)
        if "torch" in row:
            torch[row["torch"]] = row["ms"]
        elif "work" in row:
            figures.append(row)
        elif "nccl" in row:
            nccl.append(row)
        elif "megatron_overhead" in row:
            megatron.append(row["megatron_overhead"])
        elif "megatron_step" in row:
            whole_steps.append(row["megatron_step"])
        elif "module" in row:
            modules.append(row["module"])
    print(f"\n{gpu}; 1.6 G bf16 elements in 24 tensors; medians\n")
    print("| work | ms | GB moved | TB/s | floor | x floor | torch ms | x torch | asked |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in figures:
        name, by, limit = ASKED.get(row["work"], (None, None, None))
        rival = torch.get(name)
        against = f"{row['ms'] / rival:.2f}" if rival else ""
        measured = row["ms"] / rival if by == "torch" and rival else row["ratio"]
        asked = ""
        if by is not None and (by == "floor" or rival):
            asked = f"{'torch ' if by == 'torch' else ''}{limit} {'ok' if measured <= limit else 'MISSED'}"
        print(
            f"| {row['work']} | {row['ms']:.3f} | {row['gigabytes']:.2f} |"
            f" {row['gigabytes'] / row['ms']:.2f} | {row['floor']} {row['floor_ms']:.3f} |"
            f" {row['ratio']:.2f} | {f'{rival:.2f}' if rival else ''} | {against} | {asked} |"
        )
    if nccl:
        nccl_table(nccl)
    if megatron:
        megatron_table(megatron)
    if whole_steps:
        whole_step_table(whole_steps)
    if modules:
        module_table(modules)


if __name__ == "__main__":
    main()

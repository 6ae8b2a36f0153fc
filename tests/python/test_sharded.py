# SPDX-License-Identifier: Apache-2.0
"""Sharded trainers: every rank publishes its shards (driftless.ShardedSource, driftless.torch)."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import binding
from ports import free_port
from support import copy_checkpoint, read_checkpoint, run, write_checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent / "megatron"))
import megatron_jobs  # noqa: E402

driftless = binding.driftless()
HERE = Path(__file__).resolve().parent
RANKS = 4


def source_of(*shards):
    return driftless.ShardedSource(shards)


def test_a_source_lists_its_shards():
    whole, rows = np.zeros((4, 6), np.float32), np.ones((2, 6), np.float32)
    source = source_of(
        ("a", whole, (4, 6), (0, 0), True),
        ("b", rows, (4, 6), (2, 0), True),
        ("c", rows, (4, 6), (0, 0), False),  # a replica
        ("d", np.zeros((0, 6), np.float32), (4, 6), (4, 0), True),  # an empty shard
    )
    assert [spec.name for spec in source.tensors()] == ["a", "b"]
    assert [tuple(spec.shape) for spec in source.tensors()] == [(4, 6), (4, 6)]
    assert source.boxes() == [None, ([2, 0], [2, 6])]
    assert [[number for number, _ in batch] for batch in source.visit()] == [[0, 1]]


@pytest.mark.parametrize("offset", [(3, 0), (-1, 0), (0,)])
def test_a_shard_outside_of_its_tensor_is_refused_by_name(offset):
    with pytest.raises(driftless.errors.InvalidArgumentError, match="'b'.*does not lie in"):
        source_of(("b", np.ones((2, 6), np.float32), (4, 6), offset, True))


def test_blocks_of_one_rank(work):
    """Wrong shapes and gaps are refused by name before anything is published."""
    config = binding.config(driftless, work / "road")
    half = np.ones((2, 6), np.float32)
    with driftless.Job(config, "trainer", launched=False) as job:
        with pytest.raises(driftless.Error, match="'b'|b\\["):
            driftless.Publisher(job, source_of(("b", half, (4, 6), (2, 0), True)))


def test_a_rank_may_hold_several_blocks_of_a_tensor(work):
    """As for a fused projection: two ranges of rows, one of which is split by columns."""
    config = binding.config(driftless, work / "road")
    now = {"qkv": np.arange(80, dtype=np.float32).reshape(8, 10), "norm": np.ones(3, np.float32)}
    boxes = [(slice(5, 8), slice(0, 10)), (slice(0, 5), slice(0, 4)), (slice(0, 5), slice(4, 10))]

    def source():
        blocks = [
            ("qkv", np.ascontiguousarray(now["qkv"][box]), (8, 10), [cut.start for cut in box])
            for box in boxes
        ]
        return source_of(*blocks, ("norm", now["norm"], (3,), (0,)))

    held = {name: tensor.copy() for name, tensor in now.items()}
    with driftless.Job(config, "trainer", launched=False) as job:
        publisher = driftless.Publisher(job, source())
        with driftless.Job(config, "rollout", launched=False) as other:
            receiver = driftless.Receiver(other, driftless.MemoryTarget(held, version=0))
            for step in range(1, 4):
                for at in [(6, 9), (0, 3), (4, 4)][:step]:
                    now["qkv"][at] += step
                publisher.publish(source())
                assert receiver.stage(timeout_s=60)
                receiver.commit()
                assert np.array_equal(held["qkv"], now["qkv"])
    overlap = source_of(
        ("qkv", now["qkv"][:6], (8, 10), (0, 0)), ("qkv", now["qkv"][5:], (8, 10), (5, 0))
    )
    config = binding.config(driftless, work / "other")
    with driftless.Job(config, "trainer", launched=False) as job:
        with pytest.raises(driftless.Error, match="'qkv' at .5, 0. is in two blocks"):
            driftless.Publisher(job, overlap)


def trainers(work, script, *arguments, **variables):
    """Runs four ranks of a script in sharded/ to their end."""
    line = [megatron_jobs.venv_python(), str(HERE / "sharded" / script), *map(str, arguments)]
    port = free_port()
    started = []
    for rank in range(RANKS):
        env = megatron_jobs.environment() | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONFAULTHANDLER": "1",
        } | variables  # fmt: skip
        log = open(work / f"rank{rank}.log", "w")
        started.append(subprocess.Popen(line, env=env, stdout=log, stderr=subprocess.STDOUT))
    ended = codes_of(started, 600)
    logs = "\n".join((work / f"rank{rank}.log").read_text()[-2000:] for rank in range(RANKS))
    assert ended == [0] * RANKS, f"{ended}\n{logs}"


def codes_of(processes, seconds):
    """Their exit codes. Ranks that wait for a failed one, or that take longer than `seconds`, get a
    signal that makes Python print where each thread is."""
    until = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        if any(process.poll() not in (None, 0) for process in processes):
            until = min(until, time.monotonic() + 10)
        time.sleep(0.05)
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)
    return [process.wait(30) for process in processes]


def output(work):
    """The output of each rank."""
    return [json.loads((work / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def follow(config, base):
    """The bits of every version, starting from the run's base."""
    held = {name: tensor.copy() for name, tensor in base.items()}
    with driftless.Job(config, "rollout", launched=False) as job:
        dtypes = {name: "BF16" for name, tensor in held.items() if tensor.dtype == np.uint16}
        target = driftless.MemoryTarget(held, version=0, dtypes=dtypes)
        receiver = driftless.Receiver(job, target)
        while receiver.end() is None or receiver.version < receiver.end().version:
            if receiver.stage(timeout_s=1.0):
                report = receiver.commit()
                yield report.version, held


LONG = [pytest.param(layout, "frames", marks=pytest.mark.long) for layout in ("hsdp", "ep")]


@pytest.mark.parametrize("layout, files", [("fsdp", "flush"), ("fsdp_tp", "frames"), *LONG])
def test_every_version_is_the_full_tensors(layout, files, work):
    versions = check_versions(work, layout, files)
    assert len(versions) == 5
    check_shares(work, versions[0])


@pytest.mark.parametrize(
    "files, rank", [("frames", 2), pytest.param("flush", 0, marks=pytest.mark.long)]
)
def test_the_changes_of_a_failed_version_are_in_the_next_one(files, rank, work):
    """No rank publishes it, step() raises on all ranks, and the next version has its changes."""
    assert len(check_versions(work, "fsdp", files, rank)) == 4


@pytest.mark.parametrize("files", ["frames", pytest.param("flush", marks=pytest.mark.long)])
def test_a_pipelines_versions_are_the_full_tensors_of_all_stages(files, work):
    """Two stages, each with FSDP of two ranks; norms and experts that FSDP does not wrap."""
    path = configured(work, files)
    trainers(work, "pipeline_trainer.py", path, work)
    versions = check_followed(work, path)
    names = set(versions[0])
    for name in ("embed.weight", "layers.0.weight", "layers.3.bias", "norm_0.weight",
                 "norm_1.weight", "experts.2.weight", "experts.3.weight", "seen_by_1"):  # fmt: skip
        assert name in names
        changes = [not np.array_equal(a[name], b[name]) for a, b in zip(versions, versions[1:])]
        assert all(changes), f"{name} does not change, so the test shows nothing"


TIES = """
import torch, driftless.torch
module = torch.nn.Module()
module.embed, module.head = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
module.head.weight = module.embed.weight
module.register_buffer("turned", module.embed.weight.detach().t())
def drop(module, state, prefix, metadata):
    del state["embed.weight"]
module._register_state_dict_hook(drop)
print(*sorted(shard.name for shard in driftless.torch.ShardedModel(module).shards()))
"""


def test_a_tie_is_published_under_the_first_name_that_the_module_saves():
    """A buffer that is another view of a parameter's memory is no tie."""
    line = [megatron_jobs.venv_python(), "-c", TIES]
    ended = subprocess.run(
        line, env=megatron_jobs.environment(), capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.split() == ["head.weight", "turned"], ended.stderr


def test_every_tensor_that_a_rank_holds_is_published_or_refused(work):
    """A tensor that no rank owns, or that differs between ranks when a run opens or from some
    version on, is refused by name on all ranks. Any holder may publish a tensor, and one of several
    replicas does. Tensors of the base that no rank holds are recorded, and receivers prove them."""
    trainers(work, "holders.py", work)
    ranks = output(work)
    for found in ranks:
        assert "'lost.weight' is held by publisher rank 2" in found["unowned"]
        assert (
            "'experts.weight' has other bits on publisher rank 1 than on rank 0" in found["differ"]
        )
        assert "'lora_b' has other bits on publisher rank 1 than on rank 0" in found["part"]
        assert "2 of its tensors: 'mtp.weight', 'tower.weight'" in found["complete"]
        for case in ("empty_leader", "replicas", "base"):
            assert found[case]["version"] == 1
    (note,) = (note for note in ranks[0]["base"]["notes"] if "mtp.weight" in note)
    assert "tower.weight" in note and "w.1" not in note
    for case, names in (("empty_leader", ["w.1", "w.2", "w.3", "zero"]),
                        ("replicas", ["everywhere", "w.0", "w.1", "w.2", "w.3"])):  # fmt: skip
        assert [each["name"] for each in announcement_of(work / case)["tensors"]] == names
    for road in ("first", "second", "third"):
        base = {f"w.{rank}": np.zeros((6, 4), np.uint16) for rank in range(RANKS)}
        for version, held in follow(road_config(work / road), base):
            for name, tensor in held.items():
                assert (tensor.view(np.uint16) == ONES[version]).all(), f"{road} {version} {name}"
    check_unpublished(work)


ONES = [0, 0x3F80, 0x4000, 0x4040]  # 0, 1, 2, 3 in bf16


def check_unpublished(work):
    """Tensors of the base that no rank holds: in the announcement, and in receivers."""
    stored = read_checkpoint(work / "checkpoint")
    base = {name: tensor.words().reshape(tensor.shape).copy() for name, tensor in stored.items()}
    record = announcement_of(work / "base")["unpublished"]
    assert [(each["name"], each["dtype"]) for each in record] == [
        ("mtp.weight", "BF16"), ("tower.weight", "BF16")
    ]  # fmt: skip
    ((version, held),) = follow(road_config(work / "base"), base)
    assert version == 1 and all(
        (held[f"w.{rank}"] != base[f"w.{rank}"]).sum() == 1 for rank in range(4)
    )
    assert np.array_equal(held["tower.weight"], base["tower.weight"])
    published = {name: tensor for name, tensor in base.items() if name.startswith("w.")}
    assert [version for version, _ in follow(road_config(work / "base"), published)] == [1]
    other = base | {"tower.weight": base["tower.weight"] ^ 1}
    with pytest.raises(driftless.errors.WrongBaseError, match="'tower.weight', which run"):
        list(follow(road_config(work / "base"), other))
    copy = copy_checkpoint(work / "checkpoint", work / "copy")
    run("apply", work / "base", "--to", copy).check_returncode()
    assert read_checkpoint(copy)["w.2"].data == held["w.2"].tobytes()
    changed = stored | {"mtp.weight": stored["tower.weight"]}
    refused = run("apply", work / "base", "--to", write_checkpoint(work / "changed", changed))
    assert refused.returncode != 0 and "'mtp.weight'" in refused.stderr


def announcement_of(road):
    return json.loads((road / "run.json").read_text())


def road_config(road):
    return driftless.Config.parse(f"road: {{ kind: shared_fs, shared_fs: {{ dir: {road} }}, layout: frames }}\n")


def configured(work, files):
    path = work / "driftless.yaml"
    path.write_text(f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }}, layout: {files} }}\n")
    return path


def check_versions(work, layout, files, *breaks):
    """Trains; every version that a rollout gets equals torch's own full_tensor()."""
    path = configured(work, files)
    trainers(work, "fsdp_trainer.py", layout, path, work, *breaks)
    return check_followed(work, path)


def check_followed(work, path):
    versions = bits_of(work / "versions.pt")
    seen = 0
    for version, held in follow(driftless.Config.load(path), versions[0]):
        seen += 1
        for name, tensor in versions[version].items():
            assert np.array_equal(held[name], tensor), f"version {version}: {name}"
    assert seen == len(versions) - 1
    return versions


@pytest.mark.parametrize("late", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_late_rank_fails_one_version(late, work):
    """It fails on all ranks; the next version succeeds, and has its changes."""
    path = work / "driftless.yaml"
    path.write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }}, layout: frames }}\n"
        "deadlines: { publish: 4s, connect: 60s }\n"
    )
    trainers(work, "late_rank.py", path, work, late)
    for rank, found in enumerate(output(work)):
        good = ["version 1", "version 2", "version 3"]
        assert [each["said"] for n, each in enumerate(found) if n != 1] == good, f"{rank}: {found}"
        assert "for ranks" in found[1]["said"], f"{rank}: {found}"
        assert found[1]["s"] < 60, f"{rank}: {found}"
    base = {"w": np.zeros((16 * RANKS, 40), np.uint16)}
    *_, (version, held) = follow(driftless.Config.load(path), base)
    assert version == 3
    assert (held["w"].reshape(RANKS, 16, 40) != 0).any(axis=2).sum(axis=1).tolist() == [4] * RANKS


@pytest.mark.parametrize(("leaves", "mode"), [(2, "free"), (0, "free"), (1, "barrier")])
def test_a_rank_that_leaves_out_a_step_fails_one_version(leaves, mode, work):
    """No version mixes shards of two steps, and the ranks agree again at the next step."""
    path = work / "driftless.yaml"
    path.write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }}, layout: frames }}\n"
        "deadlines: { publish: 4s, connect: 60s }\n"
    )
    trainers(work, "left_out.py", path, work, leaves, mode)
    good = {"1": "version 1", "3": "version 2", "4": "version 3", "5": "version 4"}
    for rank, found in enumerate(output(work)):
        refused = found.pop("2", None)
        assert found == good, f"{rank}: {found}"
        assert (refused is None) == (rank == leaves)
        if mode == "free" and rank == (0 if leaves else 1):
            assert f"is at step 2, rank {leaves} at step 3 already" in refused, refused
    base = {"w": np.zeros((4 * RANKS, 8), np.float32)}
    *_, (version, held) = follow(driftless.Config.load(path), base)
    assert version == 4 and (held["w"] == 5).all()


def test_the_memory_of_a_rank_is_bounded(work):
    """A rank holds its shard in the published form, and a few buckets; no whole tensor that is
    larger than a bucket. While a dense version is recognized, twice its shard more
    (docs/start/sharded.md). Freed memory returns to the system at once in this test: otherwise
    glibc keeps up to a shard of it, and more beside other processes."""
    path = work / "driftless.yaml"
    path.write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }}, layout: frames }}\n"
        "buffer_size: 4MiB\nthreads: 1\n"
    )
    given_back = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    trainers(work, "fsdp_memory.py", path, work, **given_back)
    for rank, found in enumerate(output(work)):
        shard, bucket = found["shard"], found["bucket"]
        assert shard >= 8 * bucket, f"rank {rank}: {found}"
        # Opening also loads code, and frees a bucket that is not returned to the system.
        assert found["opened"] <= shard + 3 * bucket, f"rank {rank}: {found}"
        assert found["sparse"]["peak"] <= shard + 4 * bucket, f"rank {rank}: {found}"
        assert found["dense"]["peak"] <= 3 * shard + 4 * bucket, f"rank {rank}: {found}"
        assert found["whole"] <= bucket, f"rank {rank}: {found}"


def bits_of(path):
    """torch's tensors as unsigned bits, through a file: torch's Python may have another numpy."""
    line = (
        "import sys, numpy, torch;"
        "bits = lambda t: t.view(torch.uint16).numpy() if t.is_floating_point() else t.numpy();"
        "versions = enumerate(torch.load(sys.argv[1]));"
        "found = {f'{v} {n}': bits(t.contiguous()) for v, held in versions for n, t in held.items()};"
        "numpy.savez(sys.argv[2], **found)"
    )
    into = path.with_suffix(".npz")
    subprocess.run([megatron_jobs.venv_python(), "-c", line, path, into], check=True)
    versions = {}
    for key, tensor in np.load(into).items():
        number, name = key.split(" ")
        versions.setdefault(int(number), {})[name] = tensor
    return [versions[number] for number in sorted(versions)]


def check_shares(work, base):
    """Every element is read by a rank; replicas that the placements do not name are read by several
    ranks, for comparison; no rank reads all elements."""
    total = sum(tensor.size for tensor in base.values())
    shares = [found["elements"] for found in output(work)]
    assert sum(shares) >= total and max(shares) < total, shares

# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment. An apply leaves the old version, the new one, or a journal from which the
same command reaches the new one. A publisher leaves complete versions or none."""

import collections
import os
import random
import shutil
import statistics
import subprocess
import time

import numpy as np
import pytest

from support import (
    COMMAND,
    DELTAS,
    changed,
    ok,
    publish,
    random_tensor,
    read_checkpoint,
    state_version,
    write_checkpoint,
)

WAYS = [*DELTAS, ("hf_delta", "full")]
# Many kills hit every moment, and the test checks that; a few kills only show that none does harm.
APPLY_KILLS = [48, pytest.param(360, marks=pytest.mark.long)]
DIFF_KILLS = [18, pytest.param(64, marks=pytest.mark.long)]


@pytest.fixture
def scene(work):
    """8 MB of weights in two files, published in every layout and encoding."""
    rng = np.random.default_rng(3)
    old = {f"t{i}": random_tensor(rng, "BF16", (190 + 40 * i, 800)) for i in range(12)}
    old["small"] = random_tensor(rng, "F32", (5,))
    new = {name: changed(rng, tensor) for name, tensor in old.items()}
    write_checkpoint(work / "old", old, shards=2)
    write_checkpoint(work / "new", new, shards=2)
    for layout, encoding in WAYS:
        publish(work / encoding, work / "old", work / "new", layout, encoding)
    return work


def weights(path):
    return {file.name: file.read_bytes() for file in path.glob("*.safetensors")}


def restore(target, old):
    """Restores the old weights, and removes the state, without replacing files."""
    shutil.rmtree(target / ".weight_sync", ignore_errors=True)
    for name, data in old.items():
        with open(target / name, "r+b") as file:
            file.write(data)


def start(line):
    return subprocess.Popen([COMMAND, *map(str, line)], stdout=subprocess.DEVNULL)


def duration(line, prepare):
    """The median duration of some undisturbed runs, in seconds."""
    seconds = []
    for _ in range(5):
        prepare()
        begin = time.perf_counter()
        assert start(line).wait(300) == 0
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def kill_after(process, seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and process.poll() is None:
        time.sleep(min(0.0005, max(0, end - time.perf_counter())))
    process.kill()
    process.wait()


def kill_once_there(process, path, seconds):
    """Kills a moment after the file appears."""
    while process.poll() is None and not os.path.exists(path):
        pass
    kill_after(process, seconds)


def check_between(target, old, new):
    """Checks the checkpoint after a kill: before, during or after the journal."""
    found = weights(target)
    if (target / ".weight_sync/journal").exists():
        return "within"
    version = state_version(target)
    assert found == (new if version == 1 else old), f"state says version {version}"
    return "after" if version == 1 else "before"


@pytest.mark.parametrize("kills", APPLY_KILLS)
def test_kill_apply(scene, kills):
    old, new = weights(scene / "old"), weights(scene / "new")
    target = scene / "target"
    shutil.copytree(scene / "old", target)
    lines = [("apply", scene / encoding, "--to", target) for _, encoding in WAYS]
    typical = [duration(line, lambda: restore(target, old)) for line in lines]
    journal = target / ".weight_sync/journal"
    moments = random.Random(1)
    hits = collections.Counter()
    torn = 0
    left_over = set()
    for number in range(kills):
        line, seconds = lines[number % len(WAYS)], typical[number % len(WAYS)]
        restore(target, old)
        # Some kills also hit the next attempt, which may be the recovery of the first.
        for _ in range(moments.choice((1, 1, 1, 2, 3))):
            process = start(line)
            if moments.random() < 0.35:
                kill_once_there(process, journal, moments.uniform(0, 0.15 * seconds))
            else:
                kill_after(process, moments.uniform(0, seconds))
            where = check_between(target, old, new)
            hits[where] += 1
            torn += where == "within" and weights(target) not in (old, new)
        ok(*line)
        assert weights(target) == new and state_version(target) == 1
        left_over |= {p.name for p in (target / ".weight_sync").iterdir()} - {"lock", "state.json"}
    print(f"kills before, within, after the journal: {dict(hits)}; weights torn: {torn}")
    assert sum(hits.values()) >= kills * 5 // 6
    if kills >= 300:
        assert min(hits["before"], hits["within"], hits["after"]) >= 3, hits
        assert torn >= 1, "no kill hit the writing of weights"
    assert read_checkpoint(target) == read_checkpoint(scene / "new")
    assert left_over == set(), "the next apply removes the rests of a killed one"


@pytest.mark.parametrize("kills", DIFF_KILLS)
def test_kill_diff(scene, kills):
    """Every visible version is complete, and the next publisher continues."""
    old, new = weights(scene / "old"), weights(scene / "new")
    out, target = scene / "out", scene / "target"
    shutil.copytree(scene / "old", target)

    def line(layout, encoding, before="old", after="new"):
        return ("diff", scene / before, scene / after, "--out", out, "--layout", layout,
                "--encoding", encoding)  # fmt: skip

    def clear():
        shutil.rmtree(out, ignore_errors=True)

    typical = [duration(line(*way), clear) for way in WAYS]
    moments = random.Random(2)
    hits = collections.Counter()
    for number in range(kills):
        way = WAYS[number % len(WAYS)]
        clear()
        process = start(line(*way))
        kill_after(process, moments.uniform(0, typical[number % len(WAYS)]))
        visible = sorted(p.name for p in out.glob("weight_v*")) if out.exists() else []
        hidden = list(out.glob(".weight_v*")) if out.exists() else []
        hits["published" if visible else "begun" if hidden else "nothing"] += 1
        if visible:
            ok(*line("hf_delta", "xor", "new", "old"))
        else:
            ok(*line(*way))
        assert list(out.glob(".weight_v*")) == [], "the rests of the killed publisher are removed"
        restore(target, old)
        ok("apply", out, "--to", target, "--to-version", "1")
        assert weights(target) == new
        if visible:
            ok("apply", out, "--to", target)
            assert weights(target) == old and state_version(target) == 2
    print(f"killed publishers: {dict(hits)}")
    if kills >= 64:
        assert hits["published"] >= 1 and hits["begun"] >= 1, hits

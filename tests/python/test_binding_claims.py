# SPDX-License-Identifier: Apache-2.0
"""The run either proves the version that a target claims to hold, or it is reported as unproven;
ids of receivers."""

import json
import os
import resource
import shutil
import subprocess

import pytest

import binding
import jobs
from support import Tensor, write_checkpoint

driftless = binding.driftless()
from driftless import errors  # noqa: E402


@pytest.fixture
def versions(rng):
    made = [binding.weights(rng)]
    for _ in range(3):
        made.append(binding.step(rng, made[-1]))
    return made


@pytest.fixture
def road(work, versions):
    """A run with three versions, and a job of rollouts."""
    config = binding.config(driftless, work / "road", "deadlines.fetch=500ms")
    with driftless.Job(config, "trainer", launched=False) as trainer:
        with driftless.Job(config, "rollout", launched=False) as rollout:
            publisher = driftless.Publisher(trainer, binding.Source(driftless, versions[0]))
            for tensors in versions[1:]:
                publisher.publish(binding.Source(driftless, tensors))
            yield publisher, rollout


def memory(tensors, **claim):
    arrays = {name: array.copy() for name, (_, array) in tensors.items()}
    dtypes = {name: dtype for name, (dtype, _) in tensors.items()}
    return driftless.MemoryTarget(arrays, dtypes=dtypes, **claim)


def test_a_claimed_version_must_have_the_runs_digest(road, versions):
    publisher, rollout = road
    for run in (None, publisher.run):
        for held in (0, 2):
            with pytest.raises(errors.WrongBaseError, match="are claimed to be version 3"):
                driftless.Receiver(rollout, memory(versions[held], run=run, version=3))
        with driftless.Receiver(rollout, memory(versions[3], run=run, version=3)) as receiver:
            assert receiver.proven and receiver.unproven is None
            [report] = publisher.receivers()
            assert (report.version, report.digest) == (3, receiver.digest)
    assert not publisher.receivers(), "a refused receiver reports nothing"


def test_a_version_without_a_proof_is_reported_as_unproven(road, versions, work, rng):
    publisher, rollout = road
    for version in (work / "road").glob("weight_v*"):
        shutil.rmtree(version)
    target = memory(versions[1], run=publisher.run, version=3)
    with pytest.warns(RuntimeWarning, match="are claimed to be version 3.*unproven"):
        receiver = driftless.Receiver(rollout, target)
    assert not receiver.proven and "no manifest" in receiver.unproven
    [report] = publisher.receivers()
    assert f" unproven={len(versions[0])}" in report.proof
    # It actually held version 1, which the next version shows.
    new = binding.step(rng, versions[3])
    publisher.publish(binding.Source(driftless, new))
    with pytest.raises(errors.WrongBaseError):
        receiver.stage(60)
    publisher.publish_anchor()
    assert receiver.stage(60) and receiver.commit().anchor and receiver.proven
    [report] = publisher.receivers()
    assert "unproven" not in report.proof


def test_receivers_of_one_process_have_ids_of_their_own(road, versions):
    publisher, rollout = road
    first, second = (
        driftless.Receiver(rollout, memory(versions[held], version=held)) for held in (0, 3)
    )
    assert first.id != second.id
    reports = {report.id: report.version for report in publisher.receivers()}
    assert reports == {first.id: 0, second.id: 3}
    kept = first.id
    first.close()
    with driftless.Receiver(rollout, memory(versions[3], version=3)) as again:
        assert again.id == kept, "its replacement is the same rollout"
    assert {report.id for report in publisher.receivers()} == {second.id}


def test_a_version_that_is_a_link_is_refused(road, versions, work):
    _, rollout = road
    path = work / "road" / "weight_v000002"
    path.rename(work / "elsewhere")
    path.symlink_to(work / "elsewhere")
    receiver = driftless.Receiver(rollout, memory(versions[1], version=1))
    with pytest.raises(errors.InvalidArgumentError, match="weight_v000002: is a symbolic link"):
        receiver.stage(60)
    assert receiver.version == 1


def test_a_version_larger_than_its_model_allows_is_not_read(road, versions, work):
    """A part of 40 GiB that takes no space on disk: neither hashed nor read into memory."""
    xxhash = pytest.importorskip("xxhash")
    _, rollout = road
    path = work / "road" / "weight_v000001"
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][0]["size_bytes"] = 40 << 30
    text = json.dumps(manifest)
    (path / "manifest.json").write_text(text)
    (path / "DONE").write_text(xxhash.xxh3_128_hexdigest(text.encode()) + "\n")
    os.truncate(path / manifest["files"][0]["name"], 40 << 30)
    receiver = driftless.Receiver(rollout, memory(versions[0], version=0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(errors.MismatchError, match="the version is larger than any valid one"):
        receiver.stage(60)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18, "KiB"
    tensors = {n: Tensor(d, a.shape, a.tobytes()) for n, (d, a) in versions[0].items()}
    base = write_checkpoint(work / "base", tensors)
    line = [jobs.COMMAND, "apply", path.parent, "--to", base, "--to-version", "1"]
    refused = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert refused.returncode != 0 and "the version is larger than any valid one" in refused.stderr

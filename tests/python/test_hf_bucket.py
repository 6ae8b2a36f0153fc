# SPDX-License-Identifier: Apache-2.0
"""Hugging Face buckets: the road object_store through huggingface_hub itself, with a stand-in for
the Hub (tests/object_store/hub_stand_in.py)."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import binding
import jobs
from support import REPOSITORY, assert_refusal, run

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import hub_stand_in  # noqa: E402

URL = "hf://team/weights/run-1"


@pytest.fixture(scope="module")
def packages():
    jobs.need("object_store")
    made = subprocess.run(
        [REPOSITORY / "scripts/python_env.sh", "hub"], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(made.stderr.strip().splitlines()[-1])
    (found,) = (REPOSITORY / made.stdout.strip()).glob("lib/python3*/site-packages")
    return found


@pytest.fixture
def hub():
    with hub_stand_in.Hub() as made:
        yield made
    jobs.stop_started()


def start(hub, packages, role, steps, *settings, token=hub_stand_in.TOKEN, url=URL):
    line = [sys.executable, REPOSITORY / "tests/python/hub_job.py", role, hub.endpoint, url, steps]
    paths = [REPOSITORY / "build/python", REPOSITORY / "tests/python", packages]
    more = {
        "PYTHONPATH": ":".join(map(str, paths)),
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return jobs.start([*map(str, line), *settings], env=os.environ | more)


def finish(process):
    result = jobs.finish(process, 100)
    if "No module named 'driftless" in result.stderr:
        pytest.skip("the module is not built")
    assert hub_stand_in.TOKEN not in result.stderr + result.stdout
    return result


def ok(process):
    result = finish(process)
    assert result.returncode == 0, result.stderr
    return int(result.stdout.splitlines()[-1])


def test_rollouts_follow_a_trainer_that_is_started_again(hub, packages):
    early = start(hub, packages, "rollout", 5)
    assert ok(start(hub, packages, "trainer", 3)) == 3
    assert ok(start(hub, packages, "trainer", 5)) == 5
    assert ok(early) == 5
    assert ok(start(hub, packages, "rollout", 5)) == 5, "a late one"
    assert any(path.startswith("run-1/versions/") for path in hub.files)


def test_faults_of_the_hub_pass(hub, packages):
    """Status 500, and batches that fail partly although the status is 200."""
    counts = {"all": 0}

    def fault(method, path):
        counts["all"] += 1
        if path.endswith("/batch"):
            return "partial" if counts["all"] % 3 == 0 else None
        return 500 if counts["all"] % 7 == 0 and not path.startswith("/xet") else None

    hub.fault = fault
    rollout = start(hub, packages, "rollout", 3)
    assert ok(start(hub, packages, "trainer", 3)) == 3
    assert ok(rollout) == 3


def test_a_refusal_of_the_hub_is_reported_without_the_token(hub, packages):
    refused = finish(start(hub, packages, "trainer", 1, token="hf_wrong"))
    assert refused.returncode != 0 and "PermissionError" in refused.stderr, refused.stderr
    assert "hf_wrong" not in refused.stderr


def test_the_command_names_the_package_that_reads_buckets(work):
    line = ["rollout", "--config", REPOSITORY / "configs/object_store.yaml", "--set", f"road.object_store.url={URL}"]
    assert_refusal(run(*line, "--timeout", "1s"), 8, "driftless.Job")


@pytest.mark.parametrize("url", ["hf://team/../x", "hf://team/weights/%2e%2e/x", "hf://team/w/a//b"])
def test_a_path_that_leads_elsewhere_is_refused(url):
    binding.driftless()
    from driftless import object_stores

    with pytest.raises(ValueError, match="road.object_store.url"):
        object_stores.open_store(url)


class Files:
    """The Hub's calls for buckets, on a dict; `meanwhile` runs at the end of each batch."""

    def __init__(self):
        self.files, self.meanwhile = {}, lambda: None

    def batch_bucket_files(self, bucket, add=(), delete=()):
        self.files |= {path: data for data, path in add}
        for path in delete:
            del self.files[path]
        self.meanwhile()

    def get_bucket_paths_info(self, bucket, paths):
        found = [SimpleNamespace(path=p, size=len(self.files[p])) for p in paths if p in self.files]
        return iter(found)

    def download_bucket_files(self, bucket, files):
        for info, path in files:
            path.write_bytes(self.files[info.path])


def test_of_two_that_put_a_new_object_one_wins():
    """Buckets have no conditional writes: the store reads before and after it puts a new object."""
    binding.driftless()
    from driftless import object_stores

    api = Files()
    bucket = object_stores.HuggingFaceBucket("team/weights", "run", api)
    bucket.put("run.json", b"ours", True)
    with pytest.raises(FileExistsError):
        bucket.put("run.json", b"theirs", True)
    assert bucket.read("run.json", 0, 10) == b"ours"
    api.meanwhile = lambda: api.files.update({"run/versions/1": b"another's"})
    with pytest.raises(FileExistsError):
        bucket.put("versions/1", b"ours", True)
    bucket.put("index.json", b"1", False)
    bucket.put("index.json", b"2", False)
    assert bucket.read("index.json", 0, 10) == b"2"

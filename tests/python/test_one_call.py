# SPDX-License-Identifier: Apache-2.0
"""driftless.publish() and driftless.follow(): trainers and rollouts that use one call each."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import binding
import jobs
from ports import free_port
from support import REPOSITORY, Tensor, ok, read_checkpoint, write_checkpoint

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
sys.path.insert(0, str(REPOSITORY / "tests/python/megatron"))
import megatron_jobs  # noqa: E402
import servers  # noqa: E402

driftless = binding.driftless()
SCRIPT = Path(__file__).resolve().parent / "one_call.py"
SECONDS = 600  # the limit for a process on a busy machine
SAME = """
import sys, torch
first, *others = (torch.load(path) for path in sys.argv[1:])
for other in others:
    assert first.keys() == other.keys()
    for name in first: assert torch.equal(first[name], other[name]), name
"""


class Server:
    """one_call.py, which starts the processes of these tests."""

    def __init__(self):
        line = [megatron_jobs.venv_python(), str(SCRIPT), "serve"]
        pipe = subprocess.PIPE
        env = megatron_jobs.environment()
        self.popen = subprocess.Popen(line, env=env, stdin=pipe, stdout=pipe, text=True)

    def ask(self, *line):
        self.popen.stdin.write(json.dumps(line) + "\n")
        self.popen.stdin.flush()
        return json.loads(self.popen.stdout.readline())


class Process:
    def __init__(self, server, work, name, what, env, job):
        self.server, self.log, self.code = server, work / f"{name}.log", None
        given = work / f"{name}.json"
        given.write_text(
            json.dumps({"where": str(work / "run"), "out": str(work / f"{name}.pt"), **job})
        )
        argument = str(work) if what in ("refuse", "misuse") else str(given)
        self.number = server.ask(what, argument, str(self.log), env)

    @property
    def output(self):
        return self.log.read_text()

    @property
    def lines(self):
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    def poll(self):
        if self.code is None:
            self.code = self.server.ask("poll", self.number)
        return self.code

    def wait(self):
        until = time.monotonic() + SECONDS
        while self.poll() is None:
            assert time.monotonic() < until, f"after {SECONDS} s: {self.output}"
            time.sleep(0.02)
        return self.code

    def ended(self):
        assert self.wait() == 0, f"{self.code}: {self.output}"
        return self.lines

    def failed(self, *words, code=1):
        assert self.wait() == code, f"{self.code}: {self.output}"
        for word in words:
            assert word in self.output, self.output


@pytest.fixture(scope="module")
def server():
    made = Server()
    yield made
    made.popen.stdin.close()
    made.popen.wait(SECONDS)


@pytest.fixture
def start(server, work):
    started = []

    def make(name, what, env=None, **job):
        started.append(Process(server, work, name, what, env or {}, job))
        return started[-1]

    yield make
    for each in started:
        if each.poll() is None:
            os.kill(each.number, signal.SIGKILL)
            each.wait()


def closed(work, run="run"):
    return (work / run / "closed.json").exists()


def base_of(work, rng):
    """The module of one_call.py as a checkpoint in BF16."""
    shapes = {"0.weight": (16, 24), "0.bias": (16,), "1.weight": (16,), "1.bias": (16,)}
    tensors = {}
    for name, shape in shapes.items():
        bits = rng.standard_normal(shape).astype("<f4").view("<u4") >> 16
        tensors[name] = Tensor("BF16", shape, bits.astype("<u2").tobytes())
    return str(write_checkpoint(work / "base", tensors))


def same(*paths):
    subprocess.run([megatron_jobs.venv_python(), "-c", SAME, *map(str, paths)], check=True)


# --- the `where` argument -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "road"),
    [
        ("s3://bucket/run", "object_store"),
        ("hf://user/bucket/run", "object_store"),
        ("https://host/run?token=1", "object_store"),
        ("weights", "shared_fs"),
        (Path("weights"), "shared_fs"),
    ],
)
def test_an_address_is_a_road(where, road):
    found = driftless.where.config_of(where).settings()
    assert found["road.kind"] == road and found["road.layout"] == "frames"
    key = "road.object_store.url" if road == "object_store" else "road.shared_fs.dir"
    assert found[key].startswith(str(where).partition("?")[0])


@pytest.mark.parametrize("name", ["a b", 'q"uote', "# no comment", "{a: b}", "*x", "ü -", "~", "'"])
def test_any_name_of_a_directory_is_one(work, name):
    assert driftless.where.config_of(work / name).settings()["road.shared_fs.dir"] == str(work / name)


@pytest.mark.parametrize("where", ["", "gs://bucket/run", "file:///tmp/run", "tcp://host:1"])
def test_an_invalid_place_is_refused(where):
    with pytest.raises(driftless.errors.InvalidArgumentError, match="s3://bucket/prefix"):
        driftless.where.config_of(where)


def test_a_file_is_a_configuration(work):
    (work / "job.yaml").write_text("road: { kind: shared_fs, shared_fs: { dir: /there } }\n")
    (work / "job").write_text("road: { kind: mpi_rma }\n")
    config_of = driftless.where.config_of
    settings = config_of(work / "job.yaml", ["encoding=deltas"]).settings()
    assert (settings["road.shared_fs.dir"], settings["encoding"]) == ("/there", "deltas")
    assert config_of(str(work / "job")).road == "mpi_rma"
    config = config_of(work / "job.yaml")
    assert config_of(config) is config
    with pytest.raises(driftless.errors.InvalidArgumentError, match="not for a Config"):
        config_of(config, ["encoding=compact"])
    with pytest.raises(driftless.errors.NotFoundError, match=r"absent\.yaml"):
        config_of(work / "absent.yaml")


@pytest.mark.parametrize("package", ["driftless", "driftless.megatron"])
def test_the_long_import_stays_short(package):
    """Neither the two calls nor Megatron's flags import torch or numpy."""
    code = f"import sys, {package}; assert not {{'torch', 'numpy'}} & set(sys.modules); driftless.publish"
    env = {**os.environ, "PYTHONPATH": str(binding.PACKAGE)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_arrays_follow_without_torch(work, rng):
    """numpy arrays, and a loop of update() calls."""
    now = binding.weights(rng)
    pair = binding.Pair(driftless, work / "run", now)
    held = {name: array.copy() for name, (dtype, array) in now.items() if dtype != "BF16"}
    with pytest.raises(driftless.errors.WrongLayoutError, match="'embed.weight' is in the run"):
        driftless.follow(held, work / "run")
    pair.publisher.close()
    pair.trainer.leave()
    floats = {n: (d, a) for n, (d, a) in now.items() if d != "BF16"}
    pair = binding.Pair(driftless, work / "floats", floats)
    with driftless.follow(held, work / "floats") as follower:
        assert follower.update() is None and follower.version == 0 and follower.held.proven
        floats = binding.step(rng, floats)
        pair.publisher.publish(binding.Source(driftless, floats))
        assert follower.update(30).version == follower.version == 1
        assert all(held[name].tobytes() == floats[name][1].tobytes() for name in held)
        assert not follower.ended
        pair.publisher.declare_end()
        assert list(follower) == [] and follower.ended
    assert follower.held == (pair.publisher.run, 1, pair.publisher.digest, True, None)
    assert follower.update(1) is None  # after close()


# --- a run ----------------------------------------------------------------------------------------


def test_modules_dicts_and_directories_follow(work, rng, start):
    """A trainer in float32, with a base in BF16; a module of other dtypes, a dict, a directory."""
    base = base_of(work, rng)
    replica = work / "replica"
    subprocess.run(["cp", "-r", base, replica], check=True)
    followers = [
        start("module", "follow", base=base),
        start("dict", "follow", base=base, target="dict"),
        start("directory", "follow", target=str(replica)),
    ]
    trainer = start("trainer", "publish", base=base, versions=6)
    assert trainer.ended()[-1]["version"] == 6
    for each in followers:
        last = each.ended()[-1]
        assert last["ended"] and last["held"]["version"] == 6 and last["held"]["proven"]
        assert all(line.get("proven", True) for line in each.lines)
    same(*(work / f"{name}.pt" for name in ("trainer", "module", "dict")))
    assert closed(work)
    # The directory has the same weights as the dict, and records the version.
    held = json.loads((replica / ".weight_sync/state.json").read_text())
    assert int(held["version"]) == 6
    assert read_checkpoint(replica).keys() == read_checkpoint(base).keys()
    assert "6" in ok("status", work / "run")


@pytest.mark.parametrize("base", [True, False])
def test_a_trainer_that_dies_leaves_a_run_without_an_end(work, rng, start, base):
    """Whatever ends it: the next start continues the run, and the waiting rollout ends with it."""
    given = {"base": base_of(work, rng)} if base else {}
    ways = ["raise", "exit", "interrupt", "SIGKILL", "SIGTERM", "return"][:: 1 if base else 3]
    dying = {
        how: start(how, "publish", versions=3, fails_at=2, how=how, where=str(work / how), **given)
        for how in ways
    }
    waits = start("waits", "follow", where=str(work / ways[0]), dtype="bfloat16", **given)
    for how, process in dying.items():
        process.wait()
        assert [line["version"] for line in process.lines] == [1, 2], process.output
        assert not closed(work, how), how
        assert ("without an end" in process.output) == (how == "return"), process.output
    late = start("late", "follow", where=str(work / ways[0]), timeout_s=3, dtype="bfloat16", **given)
    late.failed("DeadlineExceededError", "nothing newer than version 2", "status")
    assert waits.poll() is None
    again = start("again", "publish", versions=2, where=str(work / ways[0]), **given)
    assert [line["version"] for line in again.ended()] == [3, 4]
    assert again.lines[0]["run"] == dying[ways[0]].lines[0]["run"]
    assert waits.ended()[-1]["held"]["version"] == 4
    same(work / "again.pt", work / "waits.pt")


def test_followers_that_die_start_again(work, rng, start):
    base = base_of(work, rng)
    replica = work / "replica"
    subprocess.run(["cp", "-r", base, replica], check=True)
    trainer = start("trainer", "publish", base=base, versions=12, slow_s=0.2)
    dying = [
        start("directory", "follow", target=str(replica), fails_at=2, how="SIGKILL"),
        start("dict", "follow", base=base, target="dict", fails_at=2, how="SIGKILL"),
    ]
    for each in dying:
        each.failed(code=-signal.SIGKILL)
    again = [
        start("directory2", "follow", target=str(replica)),
        start("dict2", "follow", base=base, target="dict"),
    ]
    trainer.ended()
    for each in again:
        assert each.ended()[-1]["held"]["version"] == 12
    same(work / "trainer.pt", work / "dict2.pt")


def test_wrong_calls_are_refused(start):
    (output,) = start("refuse", "refuse").ended()
    wanted = {
        "no base": ("NotFoundError", "nowhere", "give base="),
        "a name": ("WrongLayoutError", "'bias'", "export="),
        "a shape": ("WrongLayoutError", "[8, 8]", "[4, 8]", "give base="),
        "a type": ("WrongLayoutError", "F8_E4M3", "no cast", "export="),
        "both": ("InvalidArgumentError", "dtype=", "without a base"),
        "a second writer": ("BusyError", "another publisher", "stop it"),
        "other bits": ("WrongBaseError", "use the checkpoint that this run started from"),
        "other shapes": ("WrongLayoutError", "'bias'"),
        "other types": ("WrongLayoutError", "F32", "BF16"),
        "another module": ("WrongBaseError", "'bias'", "load the module from the base"),
        "nothing": ("InvalidArgumentError", "int", "a dict of tensors"),
        "no checkpoint": ("NotFoundError", "nowhere"),
        "a dict's base": ("InvalidArgumentError", "tensors are the base"),
        "no engine": ("DeadlineExceededError", "no engine answered", "start it"),
        "an engine's base": ("InvalidArgumentError", "leave out base="),
        "another base": ("WrongBaseError", "publish somewhere else"),
        "no run": ("DeadlineExceededError", "run.json"),
    }
    assert output.keys() == wanted.keys()
    for what, (kind, *words) in wanted.items():
        assert output[what][0] == kind, (what, output[what])
        for word in words:
            assert word in output[what][1], (what, output[what])


def test_wrong_use_never_ends_with_other_weights_or_hangs(start):
    (output,) = start("misuse", "misuse").ended()
    changed = ("WrongLayoutError", "not those that the publisher was opened with")
    wanted = {
        **dict.fromkeys(["order", "another name", "one more", "a tie", "another shape"], changed),
        "no values": ("InvalidArgumentError", "weight", "meta device"),
        "Ctrl-C": ("KeyboardInterrupt",),
        "closed": ("InvalidArgumentError", "closed"),
        "written by others": ("MismatchError", "'a'", "Other code wrote into the weights"),
        "no full version": ("WrongBaseError", "publish an anchor"),
        "another run": ("WrongRunError", "follow the other run"),
    }
    for what, (kind, *words) in wanted.items():
        for each in (output[what], output.get(what + ", again", output[what])):
            assert each[0] == kind and all(word in each[1] for word in words), (what, each)


def test_a_bucket_takes_the_place_of_a_directory(work, rng, start):
    jobs.need("object_store")
    base, env = base_of(work, rng), servers.client_environment()
    with contextlib.ExitStack() as stack:
        try:
            endpoint = stack.enter_context(servers.serve(servers.NAMES[0]))
        except servers.Unavailable as reason:
            pytest.skip(str(reason))
        given = {
            "where": f"s3://{servers.BUCKET}/{work.name}", "base": base,
            "sets": [f"road.object_store.endpoint={endpoint}"],
        }  # fmt: skip
        follower = start("dict", "follow", env, target="dict", **given)
        start("trainer", "publish", env, versions=3, **given).ended()
        assert follower.ended()[-1]["held"]["version"] == 3
    same(work / "trainer.pt", work / "dict.pt")


# --- several ranks --------------------------------------------------------------------------------


def ranks(start, name, count=2, **job):
    port = str(free_port())
    return [
        start(
            f"{name}{rank}", "ranks", versions=3, **job,
            env={"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )
        for rank in range(count)
    ]  # fmt: skip


def test_ranks_of_fsdp2_publish_one_run(work, rng, start):
    base = base_of(work, rng)
    follower = start("dict", "follow", base=base, target="dict")
    for each in ranks(start, "rank", base=base):
        each.ended()
    assert follower.ended()[-1]["held"]["version"] == 3
    same(work / "rank0.pt", work / "dict.pt")


@pytest.mark.parametrize(("rank", "how"), [(1, "raise"), (0, "exit"), (1, "SIGKILL")])
def test_a_rank_that_fails_after_the_last_version_leaves_no_end(work, rng, start, rank, how):
    """By then the other ranks have left the block without a failure."""
    sets = ["deadlines.connect=5s"]
    both = ranks(start, "rank", base=base_of(work, rng), rank=rank, how=how, sets=sets)
    for each in both:
        each.wait()
    assert not closed(work), [each.output for each in both]
    words = {"raise": "publisher ranks [1] left after a failure", "SIGKILL": "nothing from ranks [1]"}
    if rank == 1:
        assert words[how] in both[0].output

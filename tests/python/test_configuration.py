# SPDX-License-Identifier: Apache-2.0
"""Configurations: the command's errors, the files in configs/, and the documentation."""

import json
import re
import sys

import pytest

from support import REPOSITORY, assert_refusal, ok, ok_json, run

sys.path.insert(0, str(REPOSITORY / "scripts"))
import config_table  # noqa: E402

CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))
EXPECTED = {
    "agent_host.yaml",
    "hpc_rma.yaml",
    "nccl_cluster.yaml",
    "object_store.yaml",
    "parallel_hdf5.yaml",
    "peer.yaml",
    "shared_fs_flush.yaml",
    "shared_fs_sglang.yaml",
    "single_node.yaml",
}


def check(path, *arguments):
    """Asserts success, or that the file needs a backend that this build lacks."""
    result = run("config", "check", path, *arguments)
    assert result.returncode in (0, 8), result.stderr
    return result


def test_there_is_a_file_for_each_deployment():
    assert {path.name for path in CONFIGS} == EXPECTED


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_file_is_right(path):
    check(path)
    check(path, "--set", "road.shared_fs.dir=/elsewhere")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_commands_in_a_files_comments_exist(path):
    text = path.read_text()
    commands = re.findall(r"driftless (\w+)((?: [^\s:\\#]+)*)", text)
    assert any(command == "trainer" for command, _ in commands)
    for command, arguments in commands:
        helped = ok(command, "--help")
        for option in re.findall(r"--[a-z-]+", arguments):
            assert option in helped, f"{command} {option}"
    for config in re.findall(r"--config (\S+)", text):
        assert config == f"configs/{path.name}"


def test_the_files_show_where_engines_go(work):
    text = (REPOSITORY / "configs/shared_fs_sglang.yaml").read_text()
    before, _, rest = text.partition("# engines:\n")
    block = re.match(r"(# .*\n)+", rest).group()
    uncommented = "engines:\n" + re.sub(r"^# ", "", block, flags=re.M)
    path = work / "with_engines.yaml"
    path.write_text(before + uncommented + rest[len(block) :])
    result = check(path)
    if result.returncode == 0:
        assert "http://rollout-0:30000" in result.stdout


def test_check_prints_the_resulting_configuration(work):
    path = work / "job.yaml"
    path.write_text("road: { kind: shared_fs, shared_fs: { dir: /d } }\n")
    settings = ok_json("config", "check", path)["settings"]
    assert settings["road.layout"] == "flush" and settings["encoding"] == "deltas_zstd"
    assert "deltas_zstd" in ok("config", "check", path, "--all", "--set", "buffer_size=1MiB")


def test_wrong_files_name_line_key_and_nearest_key(work):
    path = work / "job.yaml"
    path.write_text("mode: delta\nroad:\n  kidn: mpi_rma\n")
    assert_refusal(run("config", "check", path), 2, f"{path}:3", "road.kidn", "'road.kind'")
    path.write_text("buffer_size: large\n")
    assert_refusal(run("config", "check", path), 2, f"{path}:1", "buffer_size", "64MiB", "large")
    path.write_bytes(b"mode: \xff\n")
    assert_refusal(run("config", "check", path), 2, "UTF-8")
    path.write_text("")
    assert_refusal(run("config", "check", path), 2, "empty")
    assert_refusal(run("config", "check", work / "none.yaml"), 3, "none.yaml")
    assert_refusal(run("config", "check", work), 2, str(work))


def test_the_page_has_the_commands_table():
    page = (REPOSITORY / "docs/operate/configuration.md").read_text()
    table = config_table.table(ok_json("info"))
    assert table in page, "run: build/bin/driftless info --json | scripts/config_table.py"


def test_info_lists_every_backend():
    info = ok_json("info")
    names = {backend["name"] for backend in info["backends"]}
    assert {"host_shm", "shared_fs", "shared_fs/hdf5", "object_store", "mpi_rma", "engines", "cuda"} <= names
    assert all(backend["built"] or backend["why_not"] for backend in info["backends"])
    assert "reference" in info["kernels"]


def test_check_prints_what_auto_becomes(work):
    path = work / "job.yaml"
    path.write_text("road: { kind: shared_fs, shared_fs: { dir: /d }, layout: frames }\n")
    checked = ok_json("config", "check", path)
    assert checked["settings"]["encoding"] == "auto"
    assert checked["meaning"]["encoding"].startswith("auto: deltas at first")
    assert "auto: deltas at first" in ok("config", "check", path, "--all")
    checked = ok_json("config", "check", path, "--set", "encoding=deltas")
    assert checked["settings"]["encoding"] == "deltas" and "meaning" not in checked


def test_check_refuses_the_addresses_that_a_trainer_refuses(work):
    path = work / "job.yaml"
    path.write_text("road: { kind: object_store, object_store: { url: 'gs://bucket/run?token=s3cr3t' } }\n")
    for command in (["config", "check", path], ["trainer", "--config", path]):
        refused = run(*command)
        assert_refusal(refused, 2, "road.object_store.url", "gs://bucket/run", "s3://bucket/prefix")
        assert "s3cr3t" not in refused.stderr


def test_numbers_are_numbers_in_json(work):
    path = work / "job.yaml"
    path.write_text(
        "road: { kind: shared_fs, shared_fs: { dir: /d }, layout: hf_delta }\n"
        "receiver: { id: '42' }\n"
        "engines: [{ url: 'http://h:1', action: pull_weights, local_checkpoint_dir: /m }]\n"
    )
    settings = ok_json("config", "check", path)["settings"]
    assert settings["road.shared_fs.part_files"] == 64 and settings["keep_versions"] == 16
    assert settings["anchors.first"] in (True, False) and settings["notify.cleanup"] is False
    assert settings["receiver.id"] == "42" and settings["buffer_size"].endswith("iB")
    keys = {row["key"]: row["default"] for row in ok_json("info")["keys"]}
    assert keys["road.shared_fs.part_files"] == 64 and keys["notify.cleanup"] is False
    strings = [value for value in [*settings.values(), *keys.values()] if isinstance(value, str)]
    assert [text for text in strings if text.isdecimal()] == ["42"]


def test_check_shows_what_was_changed_first(work):
    path = work / "job.yaml"
    path.write_text(
        "road: { kind: shared_fs, shared_fs: { dir: /d } }\nkeep_versions: 3\nthreads: 0\n"
        "engines: [{ url: 'http://h:1', kind: vllm }]\n"
    )
    checked = ok_json("config", "check", path)
    expected = {"road.kind", "road.shared_fs.dir", "keep_versions", "engines[0].url", "engines[0].kind"}
    assert set(checked["changed"]) == expected
    short, whole = ok("config", "check", path), ok("config", "check", path, "--all")
    assert "keep_versions" in short and "buffer_size" not in short and "--all shows them" in short
    for key in checked["settings"]:
        assert key in whole
    assert whole.index("engines[0].kind") < whole.index("buffer_size")
    nothing = ok("config", "check", path, "--set", "keep_versions=auto", "--json")
    assert "keep_versions" not in json.loads(nothing)["changed"]


ROADS = ["mpi_rma", "nccl", "peer", "shared_fs", "object_store", "host_shm"]
REQUIRED = {
    "shared_fs": ("dir:", "dir: /d"),
    "object_store": ("url:", "url: s3://bucket/prefix"),
    "peer": ("token_file:", "token_file: /d/token"),
}


@pytest.mark.parametrize("role", [None, "trainer", "rollout", "agent"])
@pytest.mark.parametrize("road", ROADS)
def test_init_writes_a_file_that_passes_the_check(work, road, role):
    path = work / "job.yaml"
    wrote = ok("config", "init", "--road", road, "--out", path, *(["--role", role] if role else []))
    assert wrote.count("\nfill in: ") == (1 if road in REQUIRED else 0)
    text = path.read_text()
    assert f"kind: {road}\n" in text and all(len(line) <= 100 for line in text.splitlines())
    if road in REQUIRED:
        key, filled = REQUIRED[road]
        result = run("config", "check", path)
        assert result.returncode in (2, 8) and (result.returncode == 8 or "is missing" in result.stderr)
        text, count = re.subn(rf'^( +){key} ""$', rf"\1{filled}", text, flags=re.M)
        assert count == 1
        path.write_text(text)
    changed = check(path)
    # With all commented defaults in effect, the configuration is the same. Only engines must be
    # real.
    before, _, engines = text.partition("\n#engines:\n")
    rest = re.sub(r"^#  +.*\n|^ +# .*\n", "", engines, flags=re.M) if engines else ""
    path.write_text(re.sub(r"^#(?! )|^#(?=  )", "", before, flags=re.M).replace("\n #", "\n#") + "\n" + rest)
    assert check(path).stdout.replace(" ", "") == changed.stdout.replace(" ", "")


def keys_in(text):
    """The keys in a file that init wrote, set or commented: "road.shared_fs.dir"."""
    keys, groups = set(), []
    for line in text.splitlines():
        match = re.match(r"#?( *)([a-z_0-9]+):( |$)", line)
        if not match:
            continue
        indent = len(match[1])
        groups = [group for group in groups if group[0] < indent] + [(indent, match[2])]
        keys.add(".".join(name for _, name in groups))
    return keys


# Keys that several roads read; any other road.X.* belongs to road X.
SHARED_KEYS = {
    "road.ring_size": {"mpi_rma", "nccl", "peer"},
    "road.ring_versions": {"mpi_rma", "nccl", "peer"},
}


@pytest.mark.parametrize("road", ROADS)
def test_init_has_every_key_that_applies(road):
    """Including the agent's keys: an agent passes versions of any road on through host_shm."""
    found = keys_in(ok("config", "init", "--road", road))
    for row in ok_json("info")["keys"]:
        key = row["key"]
        own = re.match(r"road\.([a-z_]+)\.", key)
        readers = {own[1]} if own else SHARED_KEYS.get(key, {road})
        applies = bool(readers & {road, "host_shm"})
        assert (key.replace("[]", "") in found) == applies, key


def test_the_key_of_the_road_names_every_road():
    (row,) = [row for row in ok_json("info")["keys"] if row["key"] == "road.kind"]
    assert set(re.findall(r"[a-z_]+", row["value"])) - {"or"} == set(ROADS)
    (choices,) = re.findall(r"--road TEXT:\{([a-z_,]+)\}", ok("config", "init", "--help"))
    assert set(choices.split(",")) == set(ROADS)


def test_init_refuses_to_overwrite_and_roads_that_are_none(work):
    path = work / "job.yaml"
    path.write_text("mine")
    assert_refusal(run("config", "init", "--road", "shared_fs", "--out", path), 7, str(path))
    assert path.read_text() == "mine"
    assert_refusal(run("config", "init", "--road", "smoke"), 2, "shared_fs", "mpi_rma")


def test_init_for_a_role_leaves_out_the_others_keys():
    trainer = ok("config", "init", "--road", "shared_fs", "--role", "trainer")
    assert "#anchors:" in trainer and "receiver:" not in trainer and "agent:" not in trainer
    assert "host_shm:" not in trainer
    rollout = ok("config", "init", "--road", "shared_fs", "--role", "rollout")
    assert "#receiver:" in rollout and "anchors:" not in rollout and "mpi_rma:" not in rollout

# SPDX-License-Identifier: Apache-2.0
"""`driftless compare` counts the changes between two checkpoints, and the cost of each encoding.
numpy checks the figures, and the output of `diff` checks the bytes."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from support import (
    COMMAND,
    DELTAS,
    Tensor,
    assert_refusal,
    changed,
    files_of,
    ok,
    ok_json,
    publish,
    random_tensor,
    run,
    with_bits,
    write_checkpoint,
)

LINKS = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10, "100 Gbit/s": 1e11}
FLOATS = {"BF16": 15, "F16": 15, "F32": 31}  # bits below the sign


class Page(HTMLParser):
    """The elements of a page, its attributes and its text."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data

    def assert_closed(self):
        """Asserts that it references nothing outside, and runs nothing."""
        assert not {"script", "img", "iframe", "link", "object", "a"} & set(self.tags)
        for name, value in self.attributes:
            assert not name.startswith("on") and name not in ("src", "href"), (name, value)


def ulps(old, new):
    """Distances in ULP of the changed elements of a float dtype."""
    bits = FLOATS[old.dtype]
    a, b = old.words().astype(np.int64), new.words().astype(np.int64)
    line = [np.where(w >> bits, -(w & ((1 << bits) - 1)), w) for w in (a, b)]
    return np.abs(line[1] - line[0])[a != b]


def expected_rows(old, new):
    rows = {}
    for name, tensor in old.items():
        count = int((tensor.words() != new[name].words()).sum())
        if count:
            rows[name] = (count, len(tensor.words()), ulps(tensor, new[name]))
    return rows


def test_the_figures_are_those_of_numpy(pair):
    found = ok_json("compare", pair.old_path, pair.new_path)
    rows = expected_rows(pair.old, pair.new)
    assert {row["tensor"] for row in found["changed"]} == set(rows)
    for row in found["changed"]:
        count, total, distance = rows[row["tensor"]]
        assert (row["changed_units"], row["total_units"]) == (count, total)
        assert row["density"] == pytest.approx(count / total)
        assert row["largest_ulp"] == distance.max()
        assert row["one_ulp_share"] == pytest.approx((distance == 1).mean())
    counts = [row["changed_units"] for row in found["changed"]]
    assert counts == sorted(counts, reverse=True)
    every = np.concatenate([distance for _, _, distance in rows.values()])
    total = sum(len(t.words()) for t in pair.old.values())
    assert found["changed_units"] == sum(counts) and found["total_units"] == total
    assert found["density"] == pytest.approx(sum(counts) / total)
    assert found["largest_ulp"] == every.max()
    assert found["one_ulp_share"] == pytest.approx((every == 1).mean())
    assert found["bytes"] == sum(len(t.data) for t in pair.old.values())


def test_the_bytes_are_those_that_diff_writes(pair):
    found = ok_json("compare", pair.old_path, pair.new_path, "--threads", 1)
    costs = {row["encoding"]: row for row in found["encodings"]}
    for layout, encoding in [*DELTAS, ("hf_delta", "full")]:
        out = pair.work / encoding
        report = publish(out, pair.old_path, pair.new_path, layout, encoding)
        row = costs.pop(encoding)
        assert (row["layout"], row["bytes"]) == (layout, report["payload_bytes"])
        for link, rate in LINKS.items():
            assert row["link_s"][link] == pytest.approx(8 * row["bytes"] / rate)
        if encoding != "full":
            bits = 8 * row["bytes"] / found["changed_units"]
            assert row["bits_per_changed"] == pytest.approx(bits)
    assert costs == {}
    for link, rate in LINKS.items():
        best = min(found["encodings"], key=lambda r: r["encode_ms"] / 1000 + 8 * r["bytes"] / rate)
        assert found["fastest"][link] == best["encoding"]
    again = ok_json("compare", pair.old_path, pair.new_path, "--threads", 3)
    assert [r["bytes"] for r in again["encodings"]] == [r["bytes"] for r in found["encodings"]]


def test_layers_and_kinds(work, rng):
    shape = (8, 8)
    old = {
        f"model.layers.{layer}.{kind}.weight": random_tensor(rng, "BF16", shape)
        for layer in (2, 10)
        for kind in ("self_attn.q_proj", "mlp.experts.0.up_proj", "mlp.experts.1.up_proj")
    } | {"lm_head.weight": random_tensor(rng, "BF16", shape)}
    new = {name: changed(rng, t, positions=[3, 5]) for name, t in old.items()}
    new["lm_head.weight"] = old["lm_head.weight"]
    old_path, new_path = write_checkpoint(work / "a", old), write_checkpoint(work / "b", new)
    found = ok_json("compare", old_path, new_path)
    layers = [(g["name"], g["changed_units"], g["total_units"]) for g in found["layers"]]
    assert layers == [
        ("(no layer)", 0, 64),
        ("model.layers.2", 6, 192),
        ("model.layers.10", 6, 192),
    ]
    kinds = {g["name"]: (g["changed_units"], g["tensors"]) for g in found["kinds"]}
    assert kinds == {"mlp.experts.up_proj": (8, 4), "self_attn.q_proj": (4, 2), "lm_head": (0, 1)}


def test_nothing_is_written_and_the_text_has_the_figures(pair):
    before = files_of(pair.work)
    found = ok_json("compare", pair.old_path, pair.new_path)
    text = ok("compare", pair.old_path, pair.new_path)
    assert files_of(pair.work) == before
    assert f"{found['changed_units']} of {found['total_units']} weights changed" in text
    for row in found["changed"]:
        assert row["tensor"] in text
    for row in found["encodings"]:
        assert str(row["bytes"]) in text


def test_the_text_shows_twenty_tensors_unless_asked_for_all(work, rng):
    old = {f"t{i:02d}.weight": random_tensor(rng, "BF16", (4, 4)) for i in range(25)}
    new = {name: changed(rng, t, positions=[1]) for name, t in old.items()}
    paths = write_checkpoint(work / "a", old), write_checkpoint(work / "b", new)
    short, every = ok("compare", *paths), ok("compare", *paths, "--all")
    assert sum(f"BF16  {name}\n" in short for name in old) == 20
    assert "and 5 more tensors: --all" in short
    assert all(f"BF16  {name}\n" in every for name in old)


def test_identical_checkpoints(pair):
    found = ok_json("compare", pair.old_path, pair.old_path)
    assert found["identical"] and found["changed"] == [] and found["encodings"] == []
    assert ok("compare", pair.old_path, pair.old_path).startswith("identical: 5 tensors")


def test_ulps_over_zero(work, rng):
    """-0 and +0 differ in bits only, by no step; the smallest numbers are one step from zero."""
    tensor = random_tensor(rng, "BF16", (4,))
    old = {"t": with_bits(tensor, 0x8000, 0x0001, 0x8001, 0x3F80)}
    new = {"t": with_bits(tensor, 0x0000, 0x8001, 0x0000, 0x3F81)}
    found = ok_json("compare", write_checkpoint(work / "a", old), write_checkpoint(work / "b", new))
    assert found["changed_units"] == 4 and found["largest_ulp"] == 2
    assert found["one_ulp_share"] == pytest.approx(0.5)


def test_different_layouts_are_listed(pair):
    new = dict(pair.new)
    new.pop("norm.weight")
    new["extra.weight"] = random_tensor(pair.rng, "BF16", (3,))
    new["layers.q.weight"] = Tensor("F16", (32, 48), pair.new["layers.q.weight"].data)
    path = write_checkpoint(pair.work / "other", new)
    result = run("compare", pair.old_path, path, "--json")
    assert result.returncode == 1 and result.stderr == ""
    text = run("compare", pair.old_path, path)
    assert text.returncode == 1 and "different layouts: 3 tensors" in text.stdout
    found = json.loads(result.stdout)
    listed = {d["tensor"]: (d["old"], d["new"]) for d in found["layout_differences"]}
    assert listed == {
        "norm.weight": ("F32 [33]", ""),
        "extra.weight": ("", "BF16 [3]"),
        "layers.q.weight": ("BF16 [32, 48]", "F16 [32, 48]"),
    }
    common = {n: t for n, t in pair.old.items() if n not in listed}
    rows = expected_rows(common, new)
    assert found["changed_units"] == sum(count for count, _, _ in rows.values())
    strangers = write_checkpoint(pair.work / "s", {"x": random_tensor(pair.rng, "BF16", (3,))})
    assert_refusal(run("compare", pair.old_path, strangers), 4, "wrong_layout", "in common")


def test_other_files_are_listed(pair):
    (pair.new_path / "config.json").write_text("{}")
    (pair.new_path / "merges.txt").write_text("a b")
    (pair.old_path / "vocab.json").write_text("{}")
    found = ok_json("compare", pair.old_path, pair.new_path)
    assert found["other_files"] == {
        "different": ["config.json"],
        "only_old": ["vocab.json"],
        "only_new": ["merges.txt"],
        "not_compared": [],
    }
    assert "beside the weights: different content: config.json" in ok(
        "compare", pair.old_path, pair.new_path
    )


def test_the_page_is_one_closed_file_and_is_not_overwritten(pair):
    html = pair.work / "page.html"
    ok("compare", pair.old_path, pair.new_path, "--html", html)
    page = Page(html)
    page.assert_closed()
    assert "://" not in html.read_text() and "prefers-color-scheme: dark" in html.read_text()
    found = ok_json("compare", pair.old_path, pair.new_path)
    for row in found["encodings"]:
        assert str(row["bytes"]) in page.text
    before = html.read_bytes()
    refused = run("compare", pair.old_path, pair.new_path, "--html", html)
    assert_refusal(refused, 7, "already_exists", "--force")
    assert html.read_bytes() == before
    ok("compare", pair.old_path, pair.old_path, "--html", html, "--force")
    assert html.read_bytes() != before and "identical" in Page(html).text


def test_markup_in_names_is_escaped(work, rng):
    names = [
        "<script>alert(1)</script>.weight",
        '"><img src=x onerror="alert(1)">',
        "a&b'c",
        "layers.<b>.weight",
        "ünïcode.7.weight",
    ]
    hidden = {"turned\u202e": "turned\\u202e", "unseen\u200b.weight": "unseen\\u200b.weight"}
    names += hidden
    old = {name: random_tensor(rng, "BF16", (4, 4)) for name in names}
    new = {name: changed(rng, t, positions=[1]) for name, t in old.items()}
    paths = write_checkpoint(work / "a<i>", old), write_checkpoint(work / "b", new)
    ok("compare", *paths, "--html", work / "page.html")
    page = Page(work / "page.html")
    page.assert_closed()
    assert "b" not in page.tags and "i" not in page.tags
    for name in names:
        assert hidden.get(name, name) in page.text
    assert not any(each in page.text for each in "\u202e\u200b")


def test_damaged_and_missing_checkpoints_are_refused(pair):
    assert_refusal(run("compare", pair.old_path, pair.work / "nothing"), 3, "not_found")
    file = next(pair.new_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    assert_refusal(run("compare", pair.old_path, pair.new_path), 4, file.name)


def test_memory_does_not_grow_with_the_checkpoints(work, rng):
    """Pages that were read are dropped, except those of one frame: of 400 MB, at most 300 at a
    time."""
    words = rng.integers(0x3C00, 0x3D00, 12_500_000, dtype=np.uint16)
    old = {f"layers.{i}.weight": Tensor("BF16", (12_500_000,), words.tobytes()) for i in range(8)}
    words[::200] ^= 1
    new = {name: Tensor("BF16", (12_500_000,), words.tobytes()) for name in old}
    paths = write_checkpoint(work / "a", old), write_checkpoint(work / "b", new)
    del old, new
    # Started by a small process, because a child's peak begins with that of its parent.
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    line = [sys.executable, "-c", script, COMMAND, "compare", *map(str, paths), "--threads", "2"]
    peak_kb = int(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    assert peak_kb < 300_000

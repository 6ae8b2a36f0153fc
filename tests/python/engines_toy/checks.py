# SPDX-License-Identifier: Apache-2.0
"""Checks of driftless.engines.ModuleTarget, one per function. Needs torch: `python checks.py NAME`;
tests/python/test_module_target.py runs them all."""

import gc
from unittest import mock

import torch

import driftless
import toy_engine
import toy_run
from driftless.engines import ModuleTarget, loader_writer, masked
from toy_checks import run_checks
from toy_engine import ODD, fresh, state_bits
from toy_group import Group, follow, one_masked_version, raises
from toy_observers import Collecting, Hoarding, Reading


def fifty_versions():
    ways = follow(50).ways
    assert {way.way for way in ways.values()} == {"direct", "plan", "masked", "whole"}


def fifty_versions_tp2():
    follow(50, tp=2)


def each_rank_knows_its_share():
    with Group(tp=2, odd=()) as group:
        for _ in range(4):
            group.step()
            group.take()
        held: dict[str, dict[str, tuple[int, str]]] = {}
        for target in group.targets:
            tensors, unproven = target.sweep()
            assert (tensors, unproven) == target.tracked() and unproven == []
            for name, units, region, digest in tensors:
                assert held.setdefault(name, {}).setdefault(region, (units, digest)) == (units, digest)
        whole = 0
        for name, tensor in group.weights.items():
            if group.targets[0].ways[name].reason == "the loader does not take it":
                continue
            regions = held[name].values()
            assert sum(units for units, _ in regions) == tensor.numel(), name
            if len(regions) == 1:  # a replica: both ranks hold the whole tensor
                whole += 1
                assert [digest for _, digest in regions] == [driftless.digest([(name, tensor)])], name
        assert 0 < whole < len(held)


def a_flipped_bit_is_found_wherever_it_is():
    """Also at places that no version changes, and in tensors that are loaded twice."""
    with Group(tp=2, odd=()) as group:
        ways = group.targets[0].ways.values()
        names = {name for way in ways for name in way.parameter.split(", ") if name}
    for rank in range(2):
        for name in sorted(names):
            with Group(tp=2, odd=()) as group:
                # torch does not count this write
                bits = toy_run.bits(group.engines[rank].state_dict()[name].data)
                bits.view(-1)[bits.numel() // 2] ^= 1
                group.step(share=0)
                with raises(driftless.errors.MismatchError, name, "send a full version"):
                    group.receivers[rank].stage(10)
                assert not group.targets[rank].state.valid
                assert group.receivers[1 - rank].stage(10)


def all_by_masked_overwrite():
    ways = follow(12, tp=2, allow=("masked", "whole")).ways
    assert ways["layers.0.q.weight"].way == "masked"


def masked_overwrite_in_small_chunks():
    follow(6, allow=("masked", "whole"), chunk_bytes=3000, odd=())


def full_shape_tensors_go_with_their_chunk():
    engine = Hoarding()
    with one_masked_version(engine, chunk_bytes=3000) as version:
        ways = version.target.ways
        engine.shadowed = {name for name, way in ways.items() if way.way == "whole"}
        engine.given, engine.alive, engine.calls = [], 0, 0
        version.receiver.commit()
        assert engine.calls > 5 and engine.alive == 0, (engine.calls, engine.alive)


def copies_need_no_content():
    """Tensors whose copies all have maps are never filled on the host, however large they are."""
    with mock.patch.object(loader_writer, "fill_with") as fill:
        follow(3, allow=("masked", "whole"), chunk_bytes=3000, odd=())
        assert fill.call_count == 0, fill.call_args_list


def content_is_made_for_a_loader_that_reads_it():
    engine = Reading()
    # With a GPU, too, tensors of this size are on the host.
    with one_masked_version(engine, chunk_bytes=64) as version:
        engine.seen = {}
        version.receiver.commit()
        ways = version.target.ways
        masked_ones = {name for name in engine.seen if ways[name].way == "masked"}
        for name in masked_ones:
            seen = engine.seen[name]
            both = version.before[name], version.after[name]
            before, after = (toy_run.bits(each).view(torch.int16) for each in both)
            changed = (before != after).view(seen.shape)
            assert torch.equal(seen[changed], after.view(seen.shape)[changed]), name
            assert seen[~changed].unique().numel() <= 1, name  # the sentinel
        assert len(masked_ones) > 10, len(masked_ones)


def no_garbage_is_collected_in_a_pause():
    engine = Collecting()
    with one_masked_version(engine, chunk_bytes=3000) as version:
        engine.collects, engine.fails = [], True
        with raises(driftless.Error, "injected"):
            version.receiver.commit()
        assert gc.isenabled()
        engine.fails = False
        assert version.receiver.stage(10)
        version.receiver.commit()
        assert len(engine.collects) > 5 and not any(engine.collects), engine.collects
        assert gc.isenabled()


def torch_writes_in_parts():
    """Tensors without a map, in parts of few rows; and back."""
    with mock.patch.object(masked, "_PART", 5), Group(tp=2, odd=("broadcast",)) as group:
        for _ in range(3):
            before, version = group.weights, group.receivers[0].version
            group.step_changing("odd.broadcast")
            group.take_and_go_back_to(before, version)


def all_whole():
    assert follow(6, allow=("whole",)).ways["layers.0.q.weight"].way == "whole"


def every_pattern_of_bits():
    """Values that use every bit pattern leave none for a sentinel: 8-bit ones take two passes."""
    with Group(odd=(), allow=("masked", "whole")) as group:
        weights = {name: tensor.clone() for name, tensor in group.weights.items()}
        flat = weights["fp8.weight"].view(torch.uint8).view(-1)
        flat[:512] = torch.arange(512) % 256
        weights["embed.weight"].view(torch.int16).view(-1)[:] ^= 1
        group.run.publish(weights)
        group.take()
        assert group.holds(weights)


def folded_versions():
    with Group(tp=2) as group:
        for _ in range(4):
            report = group.step()
        for update in group.take():
            assert (update.versions, update.version, update.digest) == (4, 4, report.digest)
        assert group.holds(group.weights)


def ways_are_named():
    with Group(tp=2) as group:
        assert group.ways("counts", "fp8.weight", "odd.fill_then_copy") == {"direct"}
        plan = ("layers.0.q.weight", "layers.1.experts.3.up.weight", "norm.weight", "embed.weight")
        assert group.ways(*plan, "odd.setitem", "odd.converted") == {"plan"}
        assert group.ways("odd.broadcast") == {"masked"}
        whole = set(ODD) - {"fill_then_copy", "setitem", "converted", "broadcast"}
        assert group.ways(*(f"odd.{means}" for means in whole)) == {"whole"}
        ways = group.targets[0].ways
        for means, word in {
            "index_copy": "index_copy_",
            "index_put": "index_put_",
            "add": "add_",
            "clone": "clone",
            "temporary": "temporary",
            "rebind": "in the place of 'odd.rebind'",
            "copy_then_fill": "after it copied",
            "item": "values",
        }.items():
            assert word in ways[f"odd.{means}"].reason, ways[f"odd.{means}"]
        assert ways["layers.0.k.weight"].parameter == "layers.0.qkv"
        assert ways["embed.weight"].parameter == "embed.weight, head_copy"
        assert "does not take it" in ways["unused.weight"].reason
        assert "whole    odd.add" in group.targets[0].describe()
        assert group.holds(group.weights), "making a target changes nothing"


def digest_is_proven_where_all_is_held():
    with Group(odd=()) as group:
        assert not group.targets[0].proven  # norms are converted, so not all is proven
    shapes = {"a": (torch.bfloat16, (64, 32)), "b": (torch.float32, (50,))}
    weights = {n: torch.randn(s).to(d) for n, (d, s) in shapes.items()}
    with toy_run.Run(weights) as run:
        module = torch.nn.ParameterDict(
            {n: torch.nn.Parameter(t.clone(), requires_grad=False) for n, t in weights.items()}
        )
        target = ModuleTarget(module, run.base)
        assert target.proven and {w.way for w in target.ways.values()} == {"direct"}
        receiver = run.receiver(target)
        new = toy_run.step(torch.Generator().manual_seed(1), weights)
        report = run.publish(new)
        assert receiver.stage(10) and receiver.commit().digest == report.digest
        assert all(torch.equal(toy_run.bits(module[n].data), toy_run.bits(new[n])) for n in new)
        # A foreign write: the proof of the next delta detects it, and nothing changes.
        newer = {name: tensor.clone() for name, tensor in new.items()}
        newer["b"][3:9] += 1
        run.publish(newer)
        module["b"].data[3] += 2
        held = state_bits(module)
        with raises(driftless.errors.MismatchError, "digest"):
            receiver.stage(10)
        assert state_bits(module) == held


def rollback():
    with Group(tp=2) as group:
        group.step()
        group.take()
        committed = group.weights
        group.step_changing("odd.broadcast")
        group.take_and_go_back_to(committed, 1)
        # Dropped before its commit.
        kept = group.weights
        group.step()
        for receiver in group.receivers:
            assert receiver.stage(10)
            receiver.rollback()
        assert group.holds(kept)
        group.take()
        assert group.holds(group.weights)


def full_versions_go_back():
    """After a small change only the changes are written back; after a large one all values."""
    for share in (0.02, 0.9):
        with Group(tp=2, overrides=("mode=full",)) as group:
            group.step()
            group.take()
            committed = group.weights
            group.step(share=share)
            group.take_and_go_back_to(committed, 1)


class Injected(RuntimeError):
    pass


def exception_in_the_loader():
    """At every call of every loader: everything is restored, and the next attempt succeeds."""
    for means in ("broadcast", "quantized", "rebind", "add", "index_put"):
        with Group() as group:
            engine = group.engines[0]
            group.step_changing(f"odd.{means}")
            good = getattr(engine, "load_" + means)

            def bad(into, tensor, good=good):
                good(into, tensor)
                raise Injected("the loader breaks")

            held = state_bits(engine)
            setattr(engine, "load_" + means, bad)
            assert group.receivers[0].stage(10)
            with raises(driftless.Error, "the loader breaks"):
                group.receivers[0].commit()
            assert state_bits(engine) == held, means
            assert group.receivers[0].version == 0
            setattr(engine, "load_" + means, good)
            group.take()
            assert group.holds(group.weights), means


def loader_changes_its_mind():
    """It copies during the trace, but does something else later, through any API: refused, with the
    parameter unchanged."""
    aten = torch.ops.aten
    for loader, word in (
        (lambda into, tensor: into.data.add_(tensor), "add_"),
        (lambda into, tensor: aten.add_.Tensor(into.data, tensor), "add_"),
        (lambda into, tensor: into.data[:].mul_(tensor.view(-1)), "mul_"),
        (lambda into, tensor: into.data.copy_(tensor + 1), "copy_"),
        (lambda into, tensor: into.data.copy_(torch._neg_view(tensor)), "negates"),
        (lambda into, tensor: tensor.narrow(0, 0, 1).add_(1), "changes tensor"),
    ):
        with Group(odd=("broadcast",)) as group:
            engine = group.engines[0]
            group.step_changing("odd.broadcast")
            engine.load_broadcast = loader
            held = state_bits(engine)
            assert group.receivers[0].stage(10)
            with raises(driftless.errors.UnsupportedError, "odd.broadcast", word):
                group.receivers[0].commit()
            assert state_bits(engine) == held


class Hooked(toy_engine.ToyEngine):
    """Counts its loads, and keeps a tensor computed from a parameter."""

    def __init__(self):
        super().__init__(odd=("broadcast",))
        self.register_buffer("loads", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("doubled", torch.zeros(toy_engine.HIDDEN))

    def load_weights(self, weights):
        super().load_weights(weights)
        self.loads.add_(1)
        self.doubled.copy_(self.norm * 2)


def hooks_keep_their_behaviour():
    generator = torch.Generator().manual_seed(5)
    weights = toy_run.make_weights(generator, ("broadcast",))
    with toy_run.Run(weights) as run:
        engine = Hooked().to(toy_engine.DEVICE)
        engine.load_weights(weights.items())
        target = ModuleTarget(engine, run.base)
        assert engine.loads.item() == 1, "making a target changes nothing"
        ways = target.ways
        assert ways["odd.broadcast"].way == "masked" and ways["layers.0.q.weight"].way == "plan"
        assert ways["norm.weight"].way == "whole" and "'doubled'" in ways["norm.weight"].reason
        new = {name: tensor.clone() for name, tensor in weights.items()}
        for name in ("odd.broadcast", "norm.weight"):
            new[name].view(-1)[3:9] += 1
        receiver = run.receiver(target)
        run.publish(new)
        assert receiver.stage(10)
        receiver.commit()
        assert engine.loads.item() == 3, "one masked, one whole"
        assert torch.equal(engine.doubled.cpu(), new["norm.weight"].float() * 2)
        receiver.rollback()
        assert engine.loads.item() == 1
        assert torch.equal(engine.doubled.cpu(), weights["norm.weight"].float() * 2)


def foreign_writes_are_found():
    with Group(tp=2) as group:
        name = "layers.1.down.weight"
        group.step_changing(name)
        engine = group.engines[1]
        assert group.receivers[1].stage(10)
        half = toy_engine.FFN // 2
        old, new = (toy_run.bits(w[name])[:, half:] for w in (group.before, group.weights))
        row, column = (old != new).nonzero()[-1].tolist()
        engine.layers[1].down.data[row, column] += 1
        held = state_bits(engine)
        with raises(driftless.errors.MismatchError, "layers.1.down", "undone"):
            group.receivers[1].commit()
        assert state_bits(engine) == held


def replaced_parameters_are_found():
    with Group() as group:
        group.step()
        engine = group.engines[0]
        engine.norm = torch.nn.Parameter(engine.norm.data.clone(), requires_grad=False)
        with raises(driftless.errors.BusyError, "'norm'", "ModuleTarget.follow"):
            group.receivers[0].stage(10)


def repacked_parameters_are_not_touched():
    """Another layout after loading: the guard detects and names it, and a version that changes it
    is refused without any change."""
    generator = torch.Generator().manual_seed(3)
    weights = toy_run.make_weights(generator, ())
    with toy_run.Run(weights) as run:
        engine = fresh(weights, odd=())
        up = engine.layers[0].gate_up.data
        up.copy_(torch.cat([up[toy_engine.FFN :], up[: toy_engine.FFN]]))  # swapped
        target = ModuleTarget(engine, run.base)
        held = state_bits(engine)
        refused = {name for name, way in target.ways.items() if way.way == "refused"}
        assert refused == {"layers.0.gate.weight", "layers.0.up.weight"}, refused
        assert "gate_up" in target.ways["layers.0.up.weight"].reason
        receiver = run.receiver(target)
        new = {name: tensor.clone() for name, tensor in weights.items()}
        new["layers.0.up.weight"][3, 4:9] += 1
        run.publish(new)
        with raises(driftless.errors.UnsupportedError, "gate_up", "layers.0."):
            receiver.stage(10)
        assert state_bits(engine) == held


def every_bit_is_compared_with_the_checkpoint():
    weights = toy_run.make_weights(torch.Generator().manual_seed(3), ())
    with toy_run.Run(weights) as run:
        for at in (1, 777, -2):
            engine = fresh(weights, odd=())
            toy_run.bits(engine.layers[0].gate_up.data).view(-1)[at] ^= 1
            ways = ModuleTarget(engine, run.base).ways
            for name in ("layers.0.gate.weight", "layers.0.up.weight"):
                assert "'layers.0.gate_up' does not hold" in ways[name].reason, ways[name]
            assert ways["layers.1.up.weight"].way == "plan"


def wrong_base_is_refused():
    generator = torch.Generator().manual_seed(4)
    weights = toy_run.make_weights(generator, ())
    other = toy_run.step(generator, weights)
    with toy_run.Run(other) as run, toy_run.Run(weights) as elsewhere:
        for rank in range(2):  # each rank detects it, although it holds only a part
            target = ModuleTarget(fresh(weights, rank, 2, ()), elsewhere.base)
            with raises(driftless.errors.WrongBaseError, "another base"):
                run.receiver(target)
        # The right checkpoint, but other weights in the module.
        target = ModuleTarget(fresh(weights, odd=()), run.base)
        refused = [name for name, way in target.ways.items() if way.way == "refused"]
        assert len(refused) > 10, refused


def anchors():
    """A full version is written through maps and through the loader."""
    with Group(tp=2, overrides=("anchors.first=true", "anchors.every=1")) as group:
        group.step()
        for target in group.targets:
            assert target.state.valid
        late = [fresh(group.before, rank, 2) for rank in range(2)]
        group.step(share=0.5)
        targets = [ModuleTarget(engine, group.run.base, version=None) for engine in late]
        for rank, target in enumerate(targets):
            receiver = group.run.receiver(target, id=f"late{rank}")
            assert receiver.stage(10)
            update = receiver.commit()
            assert update.anchor and update.version == 2
            expected = state_bits(fresh(group.weights, rank, 2))
            assert state_bits(late[rank]) == expected
        while group.receivers[0].version < 2:
            group.take()
        assert group.holds(group.weights)


def conversions_are_torchs():
    """Every 16-bit value, and many of 32 bits. NaNs are compared bit by bit only from bf16 to fp32;
    elsewhere torch's NaN bits vary from one element to the next."""
    native = driftless._native
    half = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    generator = torch.Generator().manual_seed(8)
    word = torch.randint(-(2**31), 2**31, (1 << 18,), generator=generator).to(torch.int32)
    near = (half.view(torch.float16).float().view(torch.int32)[:, None] + torch.arange(-2, 3)).int()
    ties = half.view(torch.bfloat16).float().view(torch.int32)[:, None] + (
        torch.tensor([0x7FFF, 0x8000, 0x8001])
    )
    words = torch.cat([word, near.reshape(-1), ties.int().reshape(-1)]).contiguous()
    names = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
    for source in names:
        values = (words if source == torch.float32 else half).view(source)
        for target in names:
            if target == source:
                continue
            count = len(values)
            view = (0, [count], [1])
            found = torch.zeros(count, dtype=target)
            # Also values that equal the sentinel.
            for sentinel in (0x1234, 0x4321):
                native.MaskedWrite(
                    native.StridedMap(view, count, view, count),
                    values.data_ptr(), names[source], sentinel, found.data_ptr(), names[target],
                )  # fmt: skip
            expected = values.to(target)
            exact = (source, target) == (torch.bfloat16, torch.float32)
            same = toy_run.bits(found) == toy_run.bits(expected)
            nan = torch.zeros_like(same) if exact else expected.isnan() & found.isnan()
            wrong = ~(same | nan)
            assert not wrong.any(), (source, target, values[wrong][:5], found[wrong][:5])


def module_without_a_loader():
    weights = {"w": torch.randn(40, 30).to(torch.bfloat16), "other": torch.randn(9)}
    with toy_run.Run(weights) as run:
        module = torch.nn.Module()
        module.w = torch.nn.Parameter(weights["w"].float(), requires_grad=False)
        target = ModuleTarget(module, run.base)
        assert target.ways["w"].way == "plan" and target.ways["other"].way == "refused"
        receiver = run.receiver(target)
        new = {"w": weights["w"].clone(), "other": weights["other"]}
        new["w"][3, 4] = 5
        run.publish(new)
        assert receiver.stage(10)
        receiver.commit()
        assert torch.equal(module.w.data, new["w"].float())


if __name__ == "__main__":
    run_checks(globals())

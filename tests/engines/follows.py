# SPDX-License-Identifier: Apache-2.0
"""Checks that every engine must pass, however versions reach it."""

import contextlib
import importlib

from environments import allow
from proxy import PATHS, Proxy


@contextlib.contextmanager
def proxies(started, run_of):
    """Makes engines at the base of a run, each behind a proxy: (the proxy, the run)."""
    with contextlib.ExitStack() as stack:

        def make(spec):
            engine, run = started.get(spec), run_of(spec.kind)
            engine.to_base(run.model.checkpoint(0))
            proxy = Proxy(engine, PATHS[spec.engine])
            stack.callback(proxy.close)
            return proxy, run

        yield make


def driver_of(spec, run, proxy, **options):
    """A driver that calls through the proxy; assert_at() uses it."""
    module = importlib.import_module(f"driftless.engines.{spec.maker}")
    proxy.engine.driver = module.follow(proxy.url, allow(run.config), **options)
    return proxy.engine.driver


def assert_at(engine, model, version):
    """Asserts that every parameter of every rank equals a fresh load of that version, that the
    engine reports the version, and that its greedy tokens are those of transformers."""
    replies = engine.replies()
    assert [reply["version"] for reply in replies] == [version] * len(replies)
    assert len({reply["digest"] for reply in replies}) == 1 and replies[0]["digest"]
    assert engine.weight_version() == str(version)
    assert_weights(engine, model, version)


def assert_weights(engine, model, version, tokens=True):
    found, fresh = engine.checksums(), engine.fresh_checksums(model.checkpoint(version))
    assert all(len(rank) > 10 for rank in found), found
    for rank, (has, wanted) in enumerate(zip(found, fresh, strict=True)):
        names = sorted(has.keys() | wanted.keys())
        other = [name for name in names if has.get(name) != wanted.get(name)]
        assert not other, f"rank {rank} of version {version}: {other}"
    if tokens:
        made = engine.generate(model.prompts, len(model.tokens[0][0]))
        assert made == engine.reference_tokens(model, version)


def follow_versions(engine, run, versions):
    """Publishes versions one by one; the engine takes each, and its weights are checked."""
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    for version in range(1, versions + 1):
        run.publish()
        done = engine.update()
        assert done["version"] == version
        assert_at(engine, run.model, version)
    assert engine.update(timeout_s=0) is None, "nothing newer"

# SPDX-License-Identifier: Apache-2.0
"""A context that holds in other threads, too.

torch's modes are of one thread, and loaders copy from pools of threads. While `everywhere` is on,
each thread that a thread inside it starts, and each task that one hands to an executor, runs inside
it. Threads of others are left alone, and so are threads that are started below Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from ..errors import UnsupportedError

# How long a loader that has returned may take to end its threads.
END_TIMEOUT_S = 60.0

_inside = threading.local()  # .scope: the _Scope that this thread runs in
_patching = threading.Lock()


class _Scope:
    def __init__(self, enter: Callable[[], AbstractContextManager[Any]]) -> None:
        self.enter = enter
        self.running = 0  # threads and tasks of it that have not ended
        self.failed: BaseException | None = None  # what the first of them raised
        self.changed = threading.Condition()

    def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        outer, _inside.scope = _scope(), self
        try:
            if outer is self:
                return work(*args, **kwargs)
            with self.enter():
                return work(*args, **kwargs)
        except BaseException as error:
            self.failed = self.failed or error
            raise
        finally:
            _inside.scope = outer
            self.count(-1)

    def run_thread(self, work: Callable[[], Any]) -> None:
        """Nobody asks a thread how it ended: everywhere() does."""
        with suppress(Exception):
            self.run(work)

    def count(self, by: int) -> None:
        with self.changed:
            self.running += by
            self.changed.notify_all()

    def wait(self) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.running == 0, END_TIMEOUT_S)


def _scope() -> _Scope | None:
    return getattr(_inside, "scope", None)


class _Patches:
    """The standard library's own functions, while somebody is inside."""

    def __init__(self) -> None:
        self.users = 0
        self.start = threading.Thread.start
        self.submit = ThreadPoolExecutor.submit

    def change(self, by: int) -> None:
        with _patching:
            self.users += by
            on = self.users > 0
            methods: Any = (threading.Thread, ThreadPoolExecutor)
            methods[0].start = _start if on else self.start
            methods[1].submit = _submit if on else self.submit


_patches = _Patches()


def _start(thread: threading.Thread) -> None:
    scope = _scope()
    if scope is not None:
        scope.count(1)
        thread.run = partial(scope.run_thread, thread.run)  # type: ignore[method-assign]
    try:
        _patches.start(thread)
    except BaseException:
        if scope is not None:
            scope.count(-1)
        raise


def _submit(pool: ThreadPoolExecutor, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
    scope = _scope()
    if scope is None:
        return _patches.submit(pool, work, *args, **kwargs)
    scope.count(1)
    _inside.scope = None  # a thread of the pool may outlive this: its tasks are inside, it is not
    try:
        future = _patches.submit(pool, partial(scope.run, work), *args, **kwargs)
    except BaseException:
        scope.count(-1)
        raise
    finally:
        _inside.scope = scope
    future.add_done_callback(lambda done: scope.count(-1) if done.cancelled() else None)
    return future


@contextmanager
def everywhere(enter: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Inside enter(), here and in the threads that are started or given work from here. Leaves when
    they have ended, and raises what one of them did; UnsupportedError if they do not end."""
    scope = _Scope(enter)
    outer = _scope()
    _patches.change(1)
    _inside.scope = scope
    try:
        with enter():
            try:
                yield
            finally:
                ended = scope.wait()
            if not ended:
                raise UnsupportedError(
                    f"the loader has returned, and {scope.running} of its threads still work"
                )
            if scope.failed is not None:
                raise scope.failed
    finally:
        _inside.scope = outer
        _patches.change(-1)

# SPDX-License-Identifier: Apache-2.0
"""A context that also holds in the threads started inside it.

torch's modes are per thread, and loaders copy from thread pools. While `everywhere` is open, each
thread that is started inside it, and each task that is submitted to an executor there, runs inside
it, too. Other threads, and threads started below Python, are left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from ..errors import UnsupportedError

# How long threads may run on after the loader has returned.
END_TIMEOUT_S = 60.0

_inside = threading.local()  # .scope: the _Scope that this thread runs in
_patching = threading.Lock()


class _Scope:
    def __init__(self, enter: Callable[[], AbstractContextManager[Any]]) -> None:
        self.enter = enter
        self.running = 0  # its threads and tasks that have not ended
        self.failed: BaseException | None = None  # the first exception in one of them
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
        """Records an exception of the thread, for everywhere() to raise."""
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
    """Replaces functions of the standard library while any scope is open."""

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
    _inside.scope = None  # a pool's thread may outlive the scope: only its tasks are inside
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
    """Runs the block inside enter(), on this thread and on every thread that it starts or gives
    work to. Returns when their work has ended, and raises their first exception; UnsupportedError
    if it does not end."""
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

# SPDX-License-Identifier: Apache-2.0
"""Object stores of the road object_store that are reached through Python.

``road.object_store.url: hf://user/bucket/prefix`` is a Hugging Face bucket; `driftless.Job` opens
it here. To add a store, write a class with the methods of `ObjectStore` and add it to `SCHEMES`."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote


class ObjectStore(Protocol):
    """Named, immutable objects. Keys are relative to the store's prefix. Several threads may call
    at once. FileNotFoundError: the object does not exist. FileExistsError: put() with `only_new`
    found the object. ValueError, TypeError, PermissionError, NotImplementedError: a retry cannot
    help. The caller retries after any other exception, until its deadline."""

    name: str

    def put(self, key: str, data: bytes, only_new: bool) -> None:
        """Writes an object atomically. The road probes `only_new` and refuses a store that ignores
        it."""

    def put_file(self, key: str, path: str) -> None: ...
    def size(self, key: str) -> int: ...
    def read(self, key: str, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer at the end of the object."""

    def list(self, prefix: str) -> Iterable[tuple[str, int]]:
        """Keys that begin with `prefix`, with sizes, in any order."""

    def remove(self, key: str) -> None: ...


class HuggingFaceBucket:
    """A prefix of a bucket of the Hugging Face Hub, through huggingface_hub (2.4 or later). It uses
    the token that huggingface_hub finds (HF_TOKEN, or `hf auth login`).

    Buckets have no conditional writes, so put() reads before and after it writes a new object. You
    must make sure that only one publisher runs: a publisher that stalls between read and write can
    overwrite an object of the publisher that replaced it. Buckets are read file by file, so a part
    is downloaded once, into a temporary directory, and read from there."""

    KEPT = 4  # downloaded files, of the parts read last

    def __init__(self, bucket_id: str, prefix: str = "", api: Any = None):
        if api is None:
            import huggingface_hub

            api = huggingface_hub.HfApi()
        if not hasattr(api, "batch_bucket_files"):
            raise NotImplementedError("huggingface_hub has no buckets: version 2.4 or later is needed")
        self.api, self.bucket_id, self.prefix = api, bucket_id, f"{prefix}/" if prefix else ""
        self.name = f"hf://{bucket_id}{'/' if prefix else ''}{prefix}"
        self._directory = tempfile.TemporaryDirectory(prefix="driftless-bucket-")
        self._lock = threading.Lock()
        self._parts: dict[str, _Part] = {}
        self._number = 0

    def put(self, key: str, data: bytes, only_new: bool) -> None:
        if only_new and self._exists(key):
            raise FileExistsError(key)
        self._batch(add=[(data, self.prefix + key)])
        # another publisher put it at the same time
        if only_new and self.read(key, 0, len(data) + 1) != data:
            raise FileExistsError(key)

    def put_file(self, key: str, path: str) -> None:
        self._batch(add=[(path, self.prefix + key)])

    def remove(self, key: str) -> None:
        # The Hub fails to delete an object that is not there.
        if self._exists(key):
            self._batch(delete=[self.prefix + key])

    def _exists(self, key: str) -> bool:
        try:
            self._info(key)
        except FileNotFoundError:
            return False
        return True

    def size(self, key: str) -> int:
        return int(self._info(key).size)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        folder, _, _ = (self.prefix + prefix).rpartition("/")
        with contextlib.suppress(FileNotFoundError), self._refused():
            for each in self.api.list_bucket_tree(self.bucket_id, folder or None, recursive=True):
                if each.type == "file" and each.path.startswith(self.prefix + prefix):
                    yield each.path.removeprefix(self.prefix), int(each.size)

    def read(self, key: str, offset: int, size: int) -> bytes:
        if not key.startswith("parts/"):  # may have changed by the next read
            with self._new_file() as path:
                self._download(key, path)
                with open(path, "rb") as file:
                    file.seek(offset)
                    return file.read(size)
        part = self._part(key)
        with part.lock:  # one thread downloads it, the others wait
            if part.file is None:
                with self._new_file() as path:
                    self._download(key, path)
                    part.file = open(path, "rb")  # noqa: SIM115
            part.file.seek(offset)
            return part.file.read(size)

    def _part(self, key: str) -> _Part:
        with self._lock:
            part = self._parts.pop(key, None) or _Part()
            self._parts[key] = part  # the newest is the last
            while len(self._parts) > self.KEPT:
                self._parts.pop(next(iter(self._parts)))
            return part

    @contextlib.contextmanager
    def _new_file(self) -> Iterator[Path]:
        with self._lock:
            self._number += 1
            path = Path(self._directory.name) / str(self._number)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _info(self, key: str) -> Any:
        with self._refused():
            for info in self.api.get_bucket_paths_info(self.bucket_id, [self.prefix + key]):
                return info
        raise FileNotFoundError(key)

    def _download(self, key: str, path: Path) -> None:
        info = self._info(key)
        with self._refused():
            self.api.download_bucket_files(self.bucket_id, files=[(info, path)])
        if path.stat().st_size != info.size:
            raise OSError(f"{key}: {path.stat().st_size} bytes received, {info.size} expected")

    def _batch(self, **operations: Any) -> None:
        """A batch that failed partly raises BucketBatchError, also with status 200."""
        with self._refused():
            self.api.batch_bucket_files(self.bucket_id, **operations)

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """Turns permanent refusals of the Hub into errors that are not retried."""
        try:
            yield
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise PermissionError(f"{self.name}: the Hub answers {status}; check the token") from None
            if status == 404 and "Entry" in type(error).__name__:
                raise FileNotFoundError(self.name) from None
            if status == 404:
                raise ValueError(f"{self.name}: there is no such bucket") from None
            raise


class _Part:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file: Any = None


def _open_hugging_face(rest: str) -> ObjectStore:
    user, _, rest = rest.partition("/")
    bucket, _, prefix = rest.partition("/")
    if not user or not bucket:
        raise ValueError("road.object_store.url: expected hf://user/bucket/prefix")
    prefix = prefix.strip("/")
    if {".", ".."} & set(unquote(f"{user}/{bucket}/{prefix}").split("/")) or "//" in prefix:
        raise ValueError(f"road.object_store.url: '{rest}' has '.', '..' or an empty part in its path")
    return HuggingFaceBucket(f"{user}/{bucket}", prefix)


SCHEMES: dict[str, Callable[[str], ObjectStore]] = {"hf": _open_hugging_face}


def open_store(url: str) -> ObjectStore:
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"road.object_store.url: no store for {scheme}://; known: {', '.join(SCHEMES)}")
    return SCHEMES[scheme](rest)

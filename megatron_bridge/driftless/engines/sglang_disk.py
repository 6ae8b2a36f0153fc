"""SGLang without our receiver inside: versions by files.

`DiskFollower` keeps the weights in host memory and hands the engine a directory with only the
tensors that a version changed: /update_weights_from_disk takes such a directory, and changes
exactly those.
`pull` is for builds that apply the interchange format themselves (/pull_weights).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import driftless

from .. import errors, kernels
from . import drive
from .follower import load_config
from .http_calls import request


class DiskFollower:
    """One server, which was started with the checkpoint `base`. Its host sees `directory`, where
    the changed tensors of one version at a time lie. Needs torch and safetensors. Close it, or use
    it with `with`."""

    def __init__(
        self,
        url: str,
        config: str,
        base: str,
        sets: Sequence[str] = (),
        directory: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self.directory = directory
        self.target = driftless.OwnedTarget(base)
        self.job = driftless.Job(load_config(config, sets), "rollout", launched=False)
        try:
            self.receiver = driftless.Receiver(self.job, self.target)
        except BaseException:
            self.job.leave()
            raise
        self._digests = self._digests_now()

    @property
    def version(self) -> int:
        return self.receiver.version

    def update(self, timeout_s: float = 60.0) -> drive.Update | None:
        """None: nothing newer came. EngineError: the engine has the old version again, or says that
        it has neither."""
        if not self.receiver.stage(timeout_s):
            return None
        before = self.version
        self.receiver.commit()
        changed = self._changed()
        try:
            self._hand_over(changed, self.version)
        except Exception as problem:  # noqa: BLE001  the engine may have taken half of it
            failed = self.version
            self.receiver.rollback()
            self._digests = self._digests_now()
            self._take_back(changed, before, failed, problem)
        return drive.Update(before, self.version, [], {"changed_tensors": float(len(changed))})

    def _take_back(self, names: list[str], before: int, failed: int, problem: Exception) -> None:
        """Whatever the engine took of the version is written over."""
        try:
            self._hand_over(names, before)
        except Exception as again:  # noqa: BLE001
            raise drive.EngineError(
                f"version {failed} was refused ({problem}), and {before} could not be put back "
                f"({again}): restart the engine"
            ) from problem
        raise drive.EngineError(
            f"version {failed} was refused, the engine is at {before}: {problem}"
        ) from problem

    def _hand_over(self, names: list[str], version: int) -> None:
        path = Path(tempfile.mkdtemp(prefix="driftless-changed-", dir=self.directory))
        try:
            self._write(path, names)
            self._post("/pause_generation", {"mode": "retract"})
            try:
                body = {"model_path": str(path), "weight_version": str(version)}
                self._post("/update_weights_from_disk", {**body, "flush_cache": True})
            finally:
                self._post("/continue_generation", {})
        finally:
            shutil.rmtree(path, ignore_errors=True)
        served = request(self.url + "/model_info", None, "GET", self.timeout_s)["weight_version"]
        if served != str(version):
            raise errors.IoError(f"{self.url} serves {served!r}, not version {version}")

    def _write(self, path: Path, names: list[str]) -> None:
        """A tensor of a wrong shape would end the server. These have the run's layout, which is the
        base's; the receiver refuses others."""
        from safetensors.torch import save_file

        found = {name: self.target.ref(name).torch() for name in names}
        save_file(found, str(path / "model.safetensors"), {"format": "pt"})

    def _changed(self) -> list[str]:
        now = self._digests_now()
        changed = [name for name, digest in now.items() if digest != self._digests[name]]
        self._digests = now
        return changed

    def _digests_now(self) -> dict[str, str]:
        layout = self.target.layout
        assert layout is not None  # it has a base
        names = [tensor.name for tensor in layout.tensors]
        return {name: kernels.digest(name, self.target.ref(name)) for name in names}

    def _post(self, path: str, body: Any) -> None:
        post(self.url, path, body, self.timeout_s)

    def close(self) -> None:
        self.receiver.leave()
        self.job.close()

    def __enter__(self) -> DiskFollower:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def pull(
    url: str, checkpoint: str, source: str, version: int, timeout_s: float = 120.0
) -> None:
    """For builds with /pull_weights: the engine's host patches `checkpoint` from the version
    directories in `source` (road.layout: hf_delta), then loads it. UnsupportedError elsewhere."""
    body = {"local_checkpoint_dir": checkpoint, "source_dir": source, "target_version": version}
    try:
        post(url, "/pull_weights", body, timeout_s)
    except errors.IoError as problem:
        if "HTTP 404" in str(problem):
            raise errors.UnsupportedError(
                f"{url} has no /pull_weights: use DiskFollower, or the loader ({problem})"
            ) from None
        raise
    loaded = {"model_path": checkpoint, "weight_version": str(version)}
    post(url, "/update_weights_from_disk", loaded, timeout_s)


def post(url: str, path: str, body: Any, timeout_s: float) -> None:
    answer = request(url.rstrip("/") + path, body, "POST", timeout_s)
    if answer.get("success") is False:
        raise errors.IoError(f"POST {url}{path}: {answer.get('message', answer)}")

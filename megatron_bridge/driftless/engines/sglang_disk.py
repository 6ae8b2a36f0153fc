# SPDX-License-Identifier: Apache-2.0
"""SGLang without Driftless' receiver: versions in files.

`DiskFollower` keeps the weights in host memory, and gives the engine a directory with only the
tensors that a version changed; /update_weights_from_disk loads exactly those.
`pull` is for builds that apply the interchange format by themselves (/pull_weights).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import driftless

from .. import _native, errors, kernels
from . import drive
from .rank_receiver import TORN, Reply, reply, text_of



class DiskFollower:
    """Follows a run for one server. The first update gives the server every tensor, a later one
    only the changed tensors. `base`: the checkpoint that the run starts from. The server's host
    must see `directory`, which holds the tensors of one update at a time. Needs torch and
    safetensors. Close it, or use `with`.

    To the driver (drive.py) it is one rank, which holds what was loaded into this very server
    process; after a restart the server gets every tensor."""

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
        self.job = driftless.Job(driftless.Config.read(config, list(sets)), "rollout", launched=False)
        try:
            self.receiver = driftless.Receiver(self.job, self.target)
        except BaseException:
            self.job.leave()
            raise
        self._digests = self._digests_now()
        self._driver = drive.Driver(_native.EngineDriver.in_process(self._carry))
        self._staged: int | None = None
        self._changed: list[str] = []  # tensors that the last commit changed
        self._process = self._server_process()
        # The version that the server holds, and its directory. None: unknown, also at first,
        # because a server started from the base may have loaded half of another version since.
        self._holds: tuple[str, int, str] | None = None
        self._loaded = ""

    @property
    def version(self) -> int:
        return self.receiver.version

    def update(self, timeout_s: float = 60.0) -> drive.Update | None:
        """None: no newer version came. EngineError: the engine has the old version again, or, if
        the error says so, stays paused."""
        done = self._driver.update(timeout_s)
        if done is not None:
            done.timings["changed_tensors"] = float(len(self._changed))
        return done

    # --- the driver's calls ------------------------------------------------------------------

    def _carry(self, operation: str, arguments: str) -> str:
        given = json.loads(arguments)
        if operation == "rpc":
            kwargs = given["kwargs"]
            return json.dumps([self._rpc(given["method"].removeprefix("driftless_"), kwargs)])
        if operation == "write":
            self._commit(given["version"])
        elif operation == "pause":
            self._post("/pause_generation", {"mode": "retract"})
        elif operation == "resume":
            self._post("/continue_generation", {})
        elif operation == "clear_cache":
            self._post("/flush_cache", {})
        elif operation == "read_label":
            return json.dumps(self._get("/model_info")["weight_version"])
        elif operation == "set_label":
            named = {"new_version": given["label"], "abort_all_requests": False}
            self._post("/update_weight_version", named)
        return "null"

    def _rpc(self, method: str, given: dict[str, Any]) -> Reply:
        error = None
        try:
            if method == "stage":
                self._staged = None
                if self.receiver.stage(given["timeout_s"]):
                    self._staged = self.receiver.staged_version
            elif method == "rollback":
                self._take_back(given["version"])
        except Exception as problem:  # noqa: BLE001  reported in the reply
            error = text_of(problem)
        self._see_server()
        run, version, digest = self._holds or ("", 0, "")
        state = "staged" if self._staged is not None else "idle" if self._holds else "unknown"
        return reply(
            given["nonce"], 0, error, process=self._process, state=state, version=version,
            staged_version=self._staged, run=run, digest=digest, follows=self.receiver.run,
            session=False,
        )  # fmt: skip

    def _commit(self, version: int) -> None:
        if self._staged != version:
            raise errors.InvalidArgumentError(f"version {self._staged} is staged, not {version}")
        self._staged = None
        whole = self._holds != self._version_now()  # also after a failed load
        self.receiver.commit()
        now = self._digests_now()
        changed = [name for name, digest in now.items() if digest != self._digests[name]]
        self._digests, self._changed = now, changed
        self._hand_over(list(now) if whole else changed)

    def _take_back(self, version: int) -> None:
        """Overwrites whatever the engine loaded of the version."""
        if self._staged is not None or self.version != version:
            self.receiver.rollback()
            self._staged = None
        if self.version != version:
            raise errors.InvalidArgumentError(f"at version {self.version}, not {version}")
        self._digests = self._digests_now()
        if self._holds != self._version_now():
            self._hand_over(list(self._digests))

    def _hand_over(self, names: list[str]) -> None:
        path = Path(tempfile.mkdtemp(prefix="driftless-changed-", dir=self.directory))
        self._holds = (self.receiver.run, TORN, "")  # until the load succeeds
        try:
            self._write(path, names)
            body = {"model_path": str(path), "weight_version": str(self.version)}
            self._post("/update_weights_from_disk", {**body, "flush_cache": False})
            self._loaded = str(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)
        self._holds = self._version_now()

    def _write(self, path: Path, names: list[str]) -> None:
        """A tensor of a wrong shape would end the server. These have the shapes of the base: the
        receiver refuses a run with another layout."""
        from safetensors.torch import save_file

        found = {name: self.target.ref(name).torch() for name in names}
        save_file(found, str(path / "model.safetensors"), {"format": "pt"})

    # --- what the server holds ---------------------------------------------------------------

    def _see_server(self) -> None:
        """Forgets what the server holds if it was restarted, or if another client loaded
        weights."""
        process = self._server_process()
        info = self._get("/model_info")
        version = self._holds[1] if self._holds else TORN
        now = (info.get("model_path"), str(info.get("weight_version")))
        ours = version == TORN or now == (self._loaded, str(version))
        if process != self._process or not ours:
            self._process, self._holds = process, None

    def _server_process(self) -> str:
        """An identity of the server process: its start-up durations in microseconds, and its
        seed."""
        info = self._get("/server_info")
        return json.dumps([info.get("startup_time"), info.get("random_seed")])

    def _version_now(self) -> tuple[str, int, str]:
        state = self.receiver.state
        return (state.run or "", state.version, state.digest)

    def _digests_now(self) -> dict[str, str]:
        layout = self.target.layout
        assert layout is not None  # it has a base
        names = [tensor.name for tensor in layout.tensors]
        return {name: kernels.digest(name, self.target.ref(name)) for name in names}

    def _get(self, path: str) -> dict[str, Any]:
        return json.loads(_native.sglang_call(self.url, path, None, self.timeout_s))

    def _post(self, path: str, body: Any) -> None:
        _native.sglang_call(self.url, path, json.dumps(body), self.timeout_s)

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
    directories in `source` (road.layout: hf_delta), then loads it while paused. Other builds raise
    UnsupportedError. An engine whose load fails stays paused."""
    _native.pull_weights(url, checkpoint, source, version, timeout_s)

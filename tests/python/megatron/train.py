# SPDX-License-Identifier: Apache-2.0
"""A trainer rank of a test job: real megatron-core on the CPU, with our flags. For the test, each
rank saves its shards after every step, and waits for the rollouts in its job file.

    train.py JOB.json            under mpirun (or with RANK and WORLD_SIZE set)

On the CPU over gloo; with DRIFTLESS_TEST_GPU=1 all ranks share GPU 0 over NCCL.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

GPU = os.environ.get("DRIFTLESS_TEST_GPU") == "1"
if not GPU:
    import cpu_shim  # before megatron
import tiny_config  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import driftless.megatron  # noqa: E402
from driftless.torch_group import PublisherGroup  # noqa: E402

if __name__ == "__main__":  # Megatron's checkpoint workers import this file again
    import tiny_model

    if not GPU:
        cpu_shim.after_import()


@contextlib.contextmanager
def outside_mpi(wanted):
    """A session whose publishers agree by torch, as under torchrun, although mpirun started
    them."""
    if wanted:
        os.environ["TORCHELASTIC_RUN_ID"] = "test"
    yield
    if wanted:
        del os.environ["TORCHELASTIC_RUN_ID"]


def bits(tensor):
    """(bytes per element, shape, data): readable with another version of numpy."""
    size = tensor.element_size()
    data = tensor.detach().cpu().view({2: torch.int16, 4: torch.int32}[size]).numpy().tobytes()
    return size, tuple(tensor.shape), data


def unwrapped(chunk):
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


class Messages:
    """Counts the calls of torch.distributed for a session's versions, and the publishers' own
    messages ("write"): in "step" (on the training thread) and in "background", [calls, bytes] per
    function."""

    NAMES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "broadcast",
             "gather", "irecv", "isend", "recv", "reduce", "reduce_scatter_tensor", "scatter",
             "send", "barrier")  # fmt: skip

    def __init__(self, session):
        self.seen = {"step": {}, "background": {}}
        publish, finish = session.publish, session.finish

        def counted_publish():
            counted_finish()
            self.install()
            session.finish = finish
            try:
                publish()
            finally:
                session.finish = counted_finish
                if not session.in_background:
                    self.restore()

        def counted_finish():
            try:
                finish()
            finally:
                self.restore()

        self.kept = {}
        session.publish, session.finish = counted_publish, counted_finish

    def install(self):
        places = [(dist, name) for name in self.NAMES] + [(PublisherGroup, "_write")]
        self.kept = {(place, name): getattr(place, name) for place, name in places}
        for (place, name), function in self.kept.items():
            setattr(place, name, self.counted(name.strip("_"), function))

    def restore(self):
        for (place, name), function in self.kept.items():
            setattr(place, name, function)
        self.kept = {}

    def counted(self, name, inner):
        def call(*args, **kwargs):
            given = [*args, *kwargs.values()]
            flat = [t for g in given for t in (g if isinstance(g, list) else [g])]
            trains = threading.current_thread() is threading.main_thread()
            count = self.seen["step" if trains else "background"].setdefault(name, [0, 0])
            count[0] += 1
            count[1] += sum(t.nbytes for t in flat if torch.is_tensor(t))
            count[1] += sum(len(t) for t in flat if isinstance(t, bytes))
            return inner(*args, **kwargs)

        return call


class Run:
    def __init__(self, job):
        self.job, self.work = job, Path(job["work"])
        self.trainer = tiny_model.Trainer(job)
        if job.get("foreign_optimizer"):
            for child in self.trainer.optimizer.chained_optimizers:
                child.__class__ = type("Foreign", (type(child),), {})
        self.trainer.config.qk_clip = bool(job.get("clip"))
        for name, value in job.get("settings", {}).items():
            setattr(self.trainer.config, name, value)
        self.restore()
        self.sessions = []
        for wanted in job["sessions"]:
            self.sessions.append(self.attach(wanted))
        self.messages = []
        if job.get("count_messages"):
            self.messages = [Messages(session) for session in self.sessions]
        self.leave_shards("start")
        for number, session in enumerate(self.sessions):
            if session is not None and session.publishes and session.last:  # the run was resumed
                self.left(number, "start", session)
                if session.leads:
                    self.wait_for_rollouts(number, session)

    def attach(self, wanted):
        parser = driftless.megatron.add_arguments(argparse.ArgumentParser())
        args = parser.parse_args(wanted["flags"])
        config = tiny_config.hf_config(self.job)
        with outside_mpi(wanted.get("outside_mpi")):
            return driftless.megatron.attach(
                self.trainer.model, self.trainer.optimizer, args, config
            )

    # --- checkpoints -----------------------------------------------------------------------------

    def state(self, loading=False):
        (chunk,) = self.trainer.model
        how = {"distrib_optim_sharding_type": "dp_reshardable"}
        model = unwrapped(chunk).sharded_state_dict(metadata=how)
        optimizer = self.trainer.optimizer.sharded_state_dict(
            model, is_loading=loading, metadata=how
        )
        return {"model": model, "optimizer": optimizer}

    def restore(self):
        path = self.job.get("load")
        if not path:
            return
        self.make_optimizer_state()
        self.load(path)
        self.trainer.steps = self.job["load_step"]

    def load(self, path):
        from megatron.core import dist_checkpointing

        loaded = dist_checkpointing.load(self.state(loading=True), path)
        unwrapped(self.trainer.model[0]).load_state_dict(loaded["model"])
        self.trainer.optimizer.load_state_dict(loaded["optimizer"])

    def make_optimizer_state(self):
        """The target of a checkpoint load: torch's Adam makes its state only in the first step."""
        for optimizer in self.trainer.optimizer.chained_optimizers:
            inner = optimizer.optimizer
            for group in inner.param_groups:
                for p in group["params"]:
                    zeros = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
                    inner.state[p] = {"step": torch.tensor(0.0), **zeros}

    def save(self, step):
        if self.job.get("save_at") == step:
            from megatron.core import dist_checkpointing

            path = self.work / "checkpoint"
            if dist.get_rank() == 0:
                path.mkdir()
            dist.barrier()
            dist_checkpointing.save(self.state(), str(path))

    # --- files for the test -----------------------------------------------------------------------

    def leave_shards(self, label):
        place = tiny_model.place()
        if place["dp"] != 0 and place["edp"] != 0:
            return
        chunks, layers = [], []
        for chunk in self.trainer.model:
            model = unwrapped(chunk)
            held = [*model.named_parameters(), *model.named_buffers()]
            chunks.append({n: bits(t) for n, t in held if "router.local" not in n})
            layers.append([layer.layer_number - 1 for layer in model.decoder.layers])
        path = self.work / "shards" / f"{label}_{place['rank']}.pickle"
        path.write_bytes(pickle.dumps({"place": place, "chunks": chunks, "layers": layers}))

    def left(self, number, label, session):
        """Writes a line per version: its step, and the publisher's report."""
        if session.leads:
            step, made = session.last, session.last.published
            group = session.groups.publishers  # None: this rank is alone
            line = {
                "label": label,
                "session": number,
                "version": made.version,
                "digest": made.digest,
                "encoding": made.encoding,
                "publishers": group and dist.get_world_size(group) or 1,
                "changed": made.changed_units,
                "ms": step.total_ms,
                "visible_ms": step.visible_ms,
                "notes": list(made.notes),
                "resent": made.live.resent_tensors,
                "total": made.total_units,
                "wire_bytes": made.wire_bytes,
                "full_bytes": made.full_bytes,
                "split": {
                    "gather": step.sync_ms + step.gather_ms,
                    "convert": step.convert_ms,
                    "diff": step.diff_ms,
                    "encode": step.encode_ms,
                    "send": step.send_ms,
                },
            }
            with (self.work / "versions.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def wait_for_rollouts(self, number, session):
        for name in self.job["sessions"][number].get("rollouts", []):
            path = self.work / "acks" / f"{name}_{session.last.published.version:06d}"
            until = time.monotonic() + self.job.get("patience_s", 300)
            while not path.exists():
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"{name} did not get to version {session.last.published.version}"
                    )
                time.sleep(0.005)

    @contextlib.contextmanager
    def broken(self, wanted):
        """Makes the last stage's source fail in the middle of a pass."""
        publishing = [s.way.source for s in self.sessions if s and s.publishes and not s.leads]
        if not wanted or not publishing:
            yield
            return
        export = publishing[0]
        assemble, calls = export._assemble, []

        def fail(*args):
            calls.append(args)
            if len(calls) == 2:
                raise RuntimeError("broken on purpose")
            return assemble(*args)

        export._assemble = fail
        yield
        export._assemble = assemble
        assert len(calls) == 2, "a pass of several buckets was expected"

    def steps(self):
        job = self.job
        for step in range(1, job["steps"] + 1):
            before = [
                s.last.published.version if s and s.publishes and s.last else 0
                for s in self.sessions
            ]
            if job.get("dense_at"):
                self.trainer.set_rate(step in job["dense_at"])
            begin = time.perf_counter()
            with self.broken(step in job.get("break_at", [])):
                successful = self.trainer.step(poison=step in job.get("poison", []))[0]
            took = time.perf_counter() - begin
            for session in filter(None, () if job.get("background") else self.sessions):
                session._report_failure_of(session.finish)  # completes the background version
            self.trainer.sync_parameters()
            if step == job["steps"] or not job.get("last_shards_only"):
                self.leave_shards(f"step{step}")
            for number, session in enumerate(self.sessions):
                if session is None or not session.publishes or session.last is None:
                    continue
                if session.last.published.version != before[number]:
                    self.left(number, f"step{step}", session)
                    if session.leads:
                        self.wait_for_rollouts(number, session)
            if dist.get_rank() == 0:
                print(f"step {step} successful {bool(successful)} ms {took * 1e3:.1f}", flush=True)
            self.save(step)
            dist.barrier()
            if step == job.get("reload_at"):
                self.load(str(self.work / "checkpoint"))
            if step == job.get("edit_at"):
                self.edit("decoder.layers.0.mlp.linear_fc2.weight")
            if job.get("clip"):  # as qk_clip does after a step
                self.edit("self_attention.linear_qkv.weight")
            if step == job.get("move_at"):
                norm = unwrapped(self.trainer.model[0]).decoder.final_layernorm.weight
                norm.data = norm.data.clone()
            if step == job.get("attach_at"):
                self.sessions = [self.attach(wanted) for wanted in job["sessions"]]

    def edit(self, which):
        """Edits parameters from outside, equally on all ranks."""
        for name, parameter in unwrapped(self.trainer.model[0]).named_parameters():
            if name.endswith(which):
                parameter.data[3:5] = 0.25

    def close(self):
        path = self.work / f"messages_{dist.get_rank()}.json"
        path.write_text(json.dumps([each.seen for each in self.messages]))
        for session in self.sessions:
            if session is not None:
                session.close()


def main():
    driftless.megatron.torch_environment()
    if GPU:  # several NCCL ranks on one GPU: each must claim to be another host
        os.environ.update(NCCL_HOSTID=f"rank{os.environ['RANK']}", NCCL_SOCKET_IFNAME="lo")
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if GPU else "gloo")
    run = Run(json.loads(Path(sys.argv[1]).read_text()))
    run.steps()
    if run.job.get("die"):
        dist.barrier()
        for saver in multiprocessing.active_children():  # Megatron's worker would never end
            saver.kill()
        os.kill(os.getpid(), signal.SIGKILL)
    run.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

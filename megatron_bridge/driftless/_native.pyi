# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, Self

__version__: str

_Path = str | PathLike[str]

# A torch tensor, a numpy array, an object with __dlpack__, __cuda_array_interface__ or the buffer
# protocol, or a TensorRef. Contiguous.
_Tensor = Any

class _Source(Protocol):
    """The weights of one publisher rank."""

    def tensors(self) -> Iterable[TensorSpec]:
        """The same on every call."""

    def visit(self) -> Iterable[Iterable[tuple[int, _Tensor]]]:
        """Every tensor once, in batches of (number in tensors(), tensor). Called again where a
        version turns out to be dense; then offers the same bytes."""

class _Group(Protocol):
    """How publisher ranks agree in a job without MPI. May have begin_epoch(number), too."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def gather(self, message: bytes, timeout_s: float, /) -> Sequence[bytes]:
        """On rank 0 the messages of all ranks, by rank; what the others return is not looked at."""

    def broadcast(self, message: bytes, timeout_s: float, /) -> bytes:
        """Rank 0's message, on every rank."""

class TensorRef:
    """A contiguous tensor of somebody's memory, which it keeps alive."""

    def __init__(self, tensor: _Tensor, name: str = "tensor") -> None: ...
    @staticmethod
    def from_pointer(
        data: int,
        dtype: str,
        shape: Sequence[int],
        device: str = "cpu",
        read_only: bool = False,
        owner: object = None,
    ) -> TensorRef:
        """Memory by its address. `owner` is kept as long as the TensorRef."""

    @property
    def data_address(self) -> int: ...
    @property
    def dtype(self) -> str:
        """As safetensors spells it: "BF16"."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def read_only(self) -> bool: ...
    def numpy(self) -> Any:
        """A view; types that numpy has not appear as unsigned integers of their width."""

    def torch(self) -> Any:
        """A view. What is read-only here must not be written through it."""

    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class TensorSpec:
    """Name, type and shape of a tensor."""

    def __init__(self, name: str, dtype: str, shape: Sequence[int]) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def units(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class Layout:
    """The tensors of a policy in ascending order of their names."""

    def __init__(self, tensors: Sequence[TensorSpec]) -> None: ...
    @property
    def tensors(self) -> list[TensorSpec]: ...
    @property
    def signature(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def total_units(self) -> int: ...
    def find(self, name: str) -> int | None: ...
    def check_same(
        self, other: Layout, ours: str = "this layout", theirs: str = "the other"
    ) -> None:
        """Raises WrongLayoutError, naming the first tensor that differs."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> TensorSpec: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

class Config:
    """The configuration of a job; docs/operate/configuration.md has its keys."""

    @staticmethod
    def load(path: _Path, overrides: Sequence[str] = ()) -> Config: ...
    @staticmethod
    def parse(text: str, overrides: Sequence[str] = ()) -> Config: ...
    def settings(self) -> dict[str, str]: ...

class Backend:
    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def built(self) -> bool: ...
    @property
    def why_not(self) -> str: ...

def backends() -> list[Backend]: ...
def launched_by_mpi() -> bool:
    """Whether an MPI launcher started this process, and torchrun did not."""

class Job:
    """This process among the others of a job. Used by the thread that made it."""

    def __init__(
        self,
        config: Config,
        role: Literal["trainer", "rollout", "bystander"],
        launched: bool | None = None,
    ) -> None: ...
    @property
    def role(self) -> str: ...
    @property
    def launched(self) -> bool: ...
    @property
    def rank(self) -> int:
        """Among those of its role."""

    @property
    def trainers(self) -> int: ...
    @property
    def rollouts(self) -> int: ...
    @property
    def together(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def tell_end(self, text: str, timeout_s: float | None = None) -> None: ...
    def hear_end(self) -> str | None: ...
    def close(self, timeout_s: float | None = None) -> None:
        """Collective: the orderly end. Closes the job's publishers and receivers first."""

    def leave(self) -> None:
        """Without waiting for anybody: after a failure."""

    def abandon(self, exit_code: int = 1) -> None:
        """Ends this process and the job that it is part of. Does not return."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

class CheckpointSource:
    """Tensors of a checkpoint: those of stage `stage` of `stages`."""

    def __init__(self, path: _Path, stage: int = 0, stages: int = 1) -> None: ...
    def tensors(self) -> list[TensorSpec]: ...
    def visit(self) -> Iterator[list[tuple[int, TensorRef]]]: ...
    def tensor(self, name: str) -> TensorRef: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def path(self) -> str: ...

class PublishReport:
    @property
    def version(self) -> int: ...
    @property
    def base_version(self) -> int: ...
    @property
    def encoding(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def changed_units(self) -> int: ...
    @property
    def total_units(self) -> int: ...
    @property
    def full_bytes(self) -> int: ...
    @property
    def delta_bytes(self) -> int: ...
    @property
    def wire_bytes(self) -> int: ...
    @property
    def anchor(self) -> bool: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def process_ms(self) -> float: ...
    @property
    def manifest_publish_ms(self) -> float: ...
    @property
    def total_ms(self) -> float: ...

class ReceiverReport:
    @property
    def id(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def proof(self) -> str: ...

class EngineTally:
    """An engine that the leading trainer tells about every version."""

    @property
    def url(self) -> str: ...
    @property
    def versions(self) -> int:
        """That it was told of."""

    @property
    def failures(self) -> int:
        """Those that it failed to take."""

    @property
    def error(self) -> str:
        """Of the last failure."""

class Publisher:
    """The trainer's side. Collective: every publisher rank makes the same calls."""

    def __init__(
        self,
        job: Job,
        base: _Source | CheckpointSource,
        group: _Group | None = None,
    ) -> None: ...
    def publish(self, source: _Source | CheckpointSource) -> PublishReport: ...
    def request_anchor(self) -> None: ...
    def publish_anchor(self) -> None: ...
    def declare_end(self) -> None:
        """Tells the rollouts that no further version comes. Nothing on ranks but the first."""

    def tell_engines(self) -> list[str]:
        """Tells the `engines` of the configuration about the last version, waits for them, and
        cleans up behind them. Returns what went wrong. Nothing on ranks but the first."""

    @property
    def engines(self) -> list[EngineTally]:
        """What each of them took. Empty on ranks but the first."""

    def receivers(self) -> list[ReceiverReport]: ...
    def progress(self) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def version(self) -> int: ...
    @property
    def run(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def resumed(self) -> bool: ...
    @property
    def notes(self) -> list[str]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

class TargetState:
    @property
    def run(self) -> str | None: ...
    @property
    def version(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def valid(self) -> bool: ...
    @property
    def partial(self) -> bool: ...

class Target:
    """Where a receiver keeps weights. One receiver at a time."""

    @property
    def state(self) -> TargetState: ...
    @property
    def layout(self) -> Layout | None: ...

class MemoryTarget(Target):
    """Tensors of the caller, written in place. `version` None: they hold no version yet; 0: the
    base. `dtypes` names types that the arrays' library has not: {"w": "BF16"} for uint16. All in
    host memory, or all on one GPU; then `stream` (as in driftless.kernels) is waited for before they
    are read, and after `pause` before they are written."""

    def __init__(
        self,
        tensors: Mapping[str, _Tensor],
        run: str | None = None,
        version: int | None = None,
        dtypes: Mapping[str, str] = ...,
        threads: int = 0,
        stream: int | None = None,
    ) -> None: ...

class OwnedTarget(Target):
    """Tensors in memory of the target's own; empty until a receiver opens, or a copy of `base`."""

    def __init__(self, base: _Path | None = None, threads: int = 0) -> None: ...
    def ref(self, name: str) -> TensorRef: ...
    def tensor(self, name: str) -> Any:
        """A read-only numpy view."""

class CheckpointTarget(Target):
    """A local checkpoint directory, patched in place."""

    def __init__(self, path: _Path, threads: int = 0) -> None: ...

class StridedMap:
    """Which units of a tensor lie where in other memory. Views are (offset, shape, strides)."""

    def __init__(
        self,
        source: tuple[int, Sequence[int], Sequence[int]],
        source_units: int,
        target: tuple[int, Sequence[int], Sequence[int]],
        target_units: int,
    ) -> None: ...
    @property
    def units(self) -> int: ...
    @property
    def dims(self) -> int: ...
    def target_of(self, position: int) -> int | None: ...
    def meets(self, other: StridedMap) -> bool:
        """Whether both may write the same unit."""

def can_cast(source: str, target: str) -> bool: ...

class TensorChanges:
    """New values of the tensors that Python writes."""

    @property
    def names(self) -> list[str]: ...
    @property
    def whole(self) -> bool:
        """A full version: every unit is new."""

    def changed(self, name: str) -> int: ...
    def absent(self, name: str) -> int | None:
        """Bits that no new value of the tensor has."""

    def write(self, name: str, tensor: _Tensor, only: int | None = None) -> None:
        """Into a tensor of the same size on the host; with `only`, the values of these bits."""

    def overwrite(
        self, name: str, map: StridedMap, target: int, dtype: str, threads: int = 0
    ) -> MaskedWrite:
        """The changes that the map has into memory, by its address."""

class MaskedWrite:
    """A copy by addresses through a map, of the source's units that are not the sentinel. Done when
    it is made."""

    def __init__(
        self,
        map: StridedMap,
        source: int,
        dtype: str,
        sentinel: int,
        target: int,
        target_dtype: str,
        threads: int = 0,
    ) -> None: ...
    @property
    def units(self) -> int: ...
    def undo(self) -> None: ...

class MaskedDevice:
    """Masked overwrites in the memory of a GPU. Tensors have the numbers that their names have in
    stage(); dense ones are (number, offset in bytes, sentinel). Streams are of torch's
    cuda_stream; what takes one queues its work there."""

    def __init__(self, device: int) -> None: ...
    def stage(
        self,
        changes: TensorChanges,
        names: Sequence[str],
        dense_bytes: int,
        first: Sequence[tuple[int, int, int]],
    ) -> None:
        """The changes of these tensors, and full-shape ones of the first chunk; waits. What was
        staged before is forgotten."""

    def tensor(self, number: int, offset: int) -> TensorRef:
        """The full-shape tensor there; it holds what was filled in last."""

    def fill(self, dense: Sequence[tuple[int, int, int]], stream: int) -> None: ...
    def overwrite(self, number: int, map: StridedMap, target: int, dtype: str, stream: int) -> int:
        """The changes that the map has into memory, by its address. A number for undo()."""

    def undo(self, write: int, stream: int) -> None: ...

class _Writer(Protocol):
    """Who writes the tensors that have no maps. Each may raise; commit then leaves no trace."""

    def check(self) -> None: ...
    def stage(self, changes: TensorChanges, /) -> None: ...
    def commit(self) -> None: ...
    def undo(self) -> None: ...
    def drop(self) -> None: ...

class MappedTarget(Target):
    """Parameters that hold tensors sliced, fused, transposed or converted. `maps` are (tensor,
    address of the memory's first unit, its dtype, map, the parameter's name); all lead to host
    memory, or to that of one GPU, `device`. driftless.engines makes them from a module."""

    def __init__(
        self,
        layout: Layout,
        maps: Sequence[tuple[str, int, str, StridedMap, str]],
        external: Sequence[str] = ...,
        refused: Mapping[str, str] = ...,
        writer: _Writer | None = None,
        owners: object = None,
        run: str | None = None,
        version: int | None = None,
        digest: str | None = None,
        threads: int = 0,
        device: int | None = None,
    ) -> None: ...
    @property
    def proven(self) -> bool:
        """Whether the state's digest is proven from the parameters' own bits."""

class UpdateReport:
    @property
    def from_version(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def versions(self) -> int: ...
    @property
    def anchor(self) -> bool: ...
    @property
    def digest(self) -> str: ...
    @property
    def changed_units(self) -> int: ...
    @property
    def full_bytes(self) -> int: ...
    @property
    def delta_bytes(self) -> int: ...
    @property
    def wire_bytes(self) -> int: ...
    @property
    def fetch_ms(self) -> float: ...
    @property
    def stage_ms(self) -> float: ...
    @property
    def pause_ms(self) -> float: ...
    @property
    def apply_ms(self) -> float: ...
    @property
    def resume_ms(self) -> float: ...
    @property
    def notes(self) -> list[str]: ...

class EndOfRun:
    @property
    def run(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def digest(self) -> str: ...

class Receiver:
    """The rollout's side: follows a road and keeps a target at its newest version."""

    def __init__(
        self,
        job: Job,
        target: Target,
        id: str | None = None,
        pause: Callable[[], object] | None = None,
        resume: Callable[[], object] | None = None,
        timeout_s: float | None = None,
        before_read: Callable[[int], object] | None = None,
    ) -> None: ...
    def stage(self, timeout_s: float = 0.0) -> bool:
        """Waits for something newer and makes it ready; False: nothing came. Ctrl-C ends it."""

    def commit(self) -> UpdateReport: ...
    def rollback(self) -> None: ...
    def report(self) -> None: ...
    def leave(self) -> None: ...
    def end(self) -> EndOfRun | None:
        """The trainer's last word, once it has come."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> TargetState: ...
    @property
    def version(self) -> int: ...
    @property
    def staged_version(self) -> int | None:
        """What commit() would bring; None where nothing is staged."""

    @property
    def digest(self) -> str: ...
    @property
    def run(self) -> str: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

def digest(
    tensors: Iterable[tuple[str, _Tensor]], threads: int = 0, stream: int | None = None
) -> str:
    """The digest of these weights, as publishers and receivers have it."""

def diff(
    old: _Tensor, new: _Tensor, threads: int = 0, stream: int | None = None
) -> tuple[TensorRef, TensorRef]:
    """(positions as I64, new values) of the units whose bits differ. `stream`: driftless.kernels."""

def gather(tensor: _Tensor, positions: _Tensor, stream: int | None = None) -> TensorRef: ...
def scatter(
    tensor: _Tensor, positions: _Tensor, values: _Tensor, stream: int | None = None
) -> None:
    """Writes the values; positions ascend."""

def masked_overwrite(
    target: _Tensor, source: _Tensor, sentinel: int, stream: int | None = None
) -> int:
    """Writes source wherever its bits are not the sentinel; how many units were written."""

def digest_tensor(
    name: str, tensor: _Tensor, threads: int = 0, stream: int | None = None
) -> str: ...

def http_call(
    url: str, body: str | None, timeout_s: float, token: str = ""
) -> tuple[int, bytes]: ...

class EngineDriver:
    """Brings all ranks of one engine to a version, or leaves all where they were. Results are JSON
    text (drive.py)."""

    @staticmethod
    def in_process(
        call: Callable[[str, str], str], source: str | None = None
    ) -> EngineDriver:
        """`call(operation, arguments)`: both sides JSON text; NotImplementedError: the engine has no
        such operation."""

    @staticmethod
    def vllm(
        url: str, source: str | None = None, timeout_s: float = 120.0, token: str = ""
    ) -> EngineDriver: ...
    @staticmethod
    def sglang(
        url: str,
        source: str | None = None,
        timeout_s: float = 120.0,
        token: str = "",
        *,
        loader: str,
        shm_dir: str,
    ) -> EngineDriver: ...
    def open(self) -> str: ...
    def start_staging(self, timeout_s: float) -> str: ...
    def wait_staged(self, timeout_s: float) -> str: ...
    def update(self, timeout_s: float, staged: bool) -> str: ...
    def ask(self) -> str: ...
    def close(self) -> str: ...

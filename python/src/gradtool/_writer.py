"""Writing gradient files (docs/gradient-file.md) with h5py, step by step."""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import re
import resource
import threading
import warnings
from dataclasses import dataclass
from typing import Callable, Optional, Sequence, Union

import h5py
import numpy as np

from ._errors import Error, UsageError
from ._files import FORMAT, SCHEMA_VERSION
from ._places import as_text, beside, expect_replaceable, identity, mark_as_being_written, mark_as_written

# The oldest HDF5 that gradtool is built with is 1.10, so files are written in its format, as the program itself writes them. "latest" would
# be that of the HDF5 inside h5py: 2.0 writes virtual data sets that 1.10 takes for damaged.
LIBVER = ("v110", "v110")
MOST_CHUNK_BYTES = 4 << 20
# The bytes that HDF5's own records about a step may take at most, in the file and for each data set.
SLACK, SLACK_OF_DATA_SET = 64 << 10, 8 << 10
QUANTITIES = ("gradient", "pseudo_gradient", "weight_delta", "weight", "activation")

# A fork waits until no thread is in HDF5. Otherwise the new process, which has none of the other threads, would wait for their lock for ever
# as soon as it closes a file.
if (_LOCK_OF_HDF5 := getattr(h5py._objects, "phil", None)) is not None:  # a name of h5py's own
    os.register_at_fork(before=_LOCK_OF_HDF5.acquire, after_in_parent=_LOCK_OF_HDF5.release, after_in_child=_LOCK_OF_HDF5.release)

VALID_NAMES = "valid are names of 1 to 1024 bytes of UTF-8 without control characters"


def producer(what: str) -> str:
    """The maker of a gradient file or of a run of a trial: version, commit and the part of the package; the commit is unknown of sources that were not built."""
    from . import __version__
    try:
        from ._commit import COMMIT
    except ImportError:
        COMMIT = "unknown"
    return f"gradtool {__version__} ({COMMIT}, {what})"


def is_valid_name(name: str) -> bool:
    """Whether a tensor may be called so."""
    encoded = name.encode(errors="replace")
    return 1 <= len(encoded) <= 1024 and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name) and encoded.decode() == name


def part_of_mixture(name: str, shape: tuple) -> Optional[str]:
    """'expert' or 'router' for a weight that a mixture of experts calls so, as `gradtool import` guesses it; else None."""
    words = {word.rstrip("0123456789") for word in re.split(r"[./_ -]", name.lower())}
    if len(shape) >= 2 and words & {"expert", "experts"}:
        return "expert"
    return "router" if len(shape) == 2 and "router" in words else None


@dataclass
class TensorSpec:
    """One tensor of the file. `dtype` is float32, float16 or bfloat16, as which its gradients are stored."""

    name: str
    shape: tuple
    kind: str = "other"
    layout: str = ""
    dtype: str = "float32"
    second_moment: bool = False
    weight: bool = False

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass
class StepRecord:
    """One step, to be written. Arrays of a tensor are [W, n], of the dtype that the file stores; bfloat16 is uint16."""

    iteration: int
    gradients: Sequence[np.ndarray]
    second_moments: Optional[Sequence[np.ndarray]] = None
    weights: Optional[Sequence[np.ndarray]] = None
    epoch: float = float("nan")
    learning_rate: float = float("nan")
    loss: Optional[np.ndarray] = None
    compute_seconds: Optional[np.ndarray] = None
    overflow: Optional[np.ndarray] = None
    batch_weight: Optional[np.ndarray] = None


def chunk_shape(workers: int, elements: int, value_bytes: int) -> tuple:
    """One step of one worker, its elements in equal parts of at most 4 MiB; of small tensors, several workers."""
    parts = -(-elements * value_bytes // MOST_CHUNK_BYTES)
    per_chunk = -(-elements // parts)
    together = 1 if parts > 1 else max(1, min(workers, (64 << 10) // max(1, elements * value_bytes)))
    return (1, together, per_chunk)


def expect_room(path: str, needed: int) -> None:
    """Raises Error where the file cannot grow by so many bytes.

    This is asked before HDF5 begins to write, because HDF5 ends the process when it cannot write what it holds.
    """
    disk = os.statvfs(os.path.dirname(os.path.abspath(path)))
    if disk.f_blocks == 0:  # a file system that does not know how much room it has
        return
    free = disk.f_bavail * disk.f_frsize
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - (os.path.getsize(path) if os.path.exists(path) else 0)))
    if needed > free:
        raise Error(f"{path}: needs {needed} bytes for what is to be written, but only {free} are free there")


def existing(path: str) -> UsageError:
    """Returns the error for a file that is in the way."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    hint = "" if restarts == "0" else (f" (torchrun has started this job again, {restarts} times; with the environment variable "
                                       f"TORCHELASTIC_RESTART_COUNT in the path each start has files of its own)")
    return UsageError(f"{path} exists; give another path or replace=True{hint}")


# A flush looks through all dirty metadata again after each piece that others wait for: of n data sets it takes a time that grows with n^2.
_MOST_DIRTY_DATA_SETS = 2048


def _keep_metadata_cache_small(file: h5py.File) -> None:
    """Closing a file looks through its cache of metadata as a flush does, so the cache is not let grow to HDF5's 32 MB."""
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.max_size = 4 << 20
    config.incr_mode = config.flash_incr_mode = 0  # off
    file.id.set_mdc_config(config)


class GradientWriter:
    """A gradient file that grows by one step at a time.

    HDF5's single-writer mode orders its writes, so that a kill at any moment leaves every step readable for which
    `write` has returned; readers open such a file in SWMR mode, as gradtool and `gradtool.open` do by themselves.
    """

    def __init__(self, path: Union[str, os.PathLike], tensors: Sequence[TensorSpec], workers: int, attributes: dict,
                 columns: Sequence[str] = (), replace: bool = False, readiness: bool = False) -> None:
        for spec in tensors:
            if not is_valid_name(spec.name):
                raise UsageError(f"a tensor is called {spec.name[:80]!r}; {VALID_NAMES}")
        if (attributes.get("batch_size") or 0) < 0:
            raise UsageError(f"batch_size is {attributes['batch_size']}; valid is 0 or more")
        self.path = as_text(path)
        self._target = self._place = os.path.realpath(self.path)  # the training may change the folder that it is in, and a link stays
        self._process = os.getpid()
        if os.path.lexists(self.path):
            if not replace:
                raise existing(self.path)
            if os.path.exists(self.path) and not os.path.isfile(self.path):
                raise UsageError(f"{self.path} is not a plain file and is not replaced")
            expect_replaceable(self._target)
            self._place = beside(self._target)  # until there is a step, the old file stays
        self.steps = 0
        self._reduce_dtype: Optional[str] = None
        self._weighted = False
        if not os.path.isdir(os.path.dirname(self._target)):
            raise Error(f"{self.path}: cannot be written, because there is no such folder")
        expect_room(self._place, len(tensors) * (SLACK_OF_DATA_SET + 4 * workers) + SLACK)
        try:
            self._file = h5py.File(self._place, "x", libver=LIBVER)
        except OSError as error:
            raise Error(f"{self.path}: cannot be written ({error})") from error
        _keep_metadata_cache_small(self._file)
        self._open = True
        try:
            self._lay_out(tensors, workers, attributes, columns, readiness)
        except BaseException:
            self.close()
            raise

    def _lay_out(self, tensors: Sequence[TensorSpec], workers: int, attributes: dict, columns: Sequence[str],
                 readiness: bool) -> None:
        self._file.attrs.update(
            format=FORMAT, schema_version=SCHEMA_VERSION, complete=0, interrupted=0, workers=workers,
            created=now())
        for name, value in attributes.items():
            try:
                if value is not None:
                    self._file.attrs[name] = value
            except (TypeError, ValueError, OverflowError) as error:
                raise UsageError(f"{name} is {value!r}, which an attribute of a gradient file cannot hold ({error})") from error

        steps = self._file.create_group("steps")
        self._columns = {}
        for name, dtype, wide in (("epoch", "f8", False), ("learning_rate", "f8", False), ("loss", "f4", True),
                                  ("compute_seconds", "f8", True), ("overflow", "u1", True), ("batch_weight", "f8", True), ("iteration", "i8", False)):
            if name != "iteration" and name not in columns:
                continue
            row = (workers,) if wide else ()
            self._columns[name] = steps.create_dataset(name, (0,) + row, dtype, maxshape=(None,) + row,
                                                       chunks=(max(1, 512 // max(1, workers if wide else 1)),) + row)
        self._gradients, self._moments, self._weights = [], [], []
        for number, tensor in enumerate(tensors):
            group = self._file.create_group(f"tensors/{number:04d}")
            group.attrs.update(name=tensor.name, shape=np.array(tensor.shape, "i8"), kind=tensor.kind, layout=tensor.layout)
            n = tensor.elements
            bits = {"float32": "f4", "float16": "f2", "bfloat16": "u2"}[tensor.dtype]
            gradient = group.create_dataset("gradient", (0, workers, n), bits, maxshape=(None, workers, n),
                                            chunks=chunk_shape(workers, n, np.dtype(bits).itemsize))
            if tensor.dtype == "bfloat16":
                gradient.attrs["dtype"] = "bfloat16"
            self._gradients.append(gradient)
            if tensor.second_moment:
                self._moments.append(group.create_dataset("second_moment", (0, workers, n), "f4",
                                                          maxshape=(None, workers, n), chunks=chunk_shape(workers, n, 4)))
            if tensor.weight:
                self._weights.append(group.create_dataset("weight", (0, n), "f4", maxshape=(None, n),
                                                          chunks=chunk_shape(1, n, 4)[::2]))
        if readiness:  # written here, so that putting them later needs no room on the disk
            ready = np.full((workers, len(tensors)), np.nan, "f4")
            self._readiness = [self._file.create_dataset("readiness/ready", data=ready),
                               self._file.create_dataset("readiness/backward_share", data=np.full(workers, np.nan))]
        self._file.swmr_mode = True
        mark_as_being_written(self._file.id.get_vfd_handle())
        data_sets = [*self._gradients, *self._moments, *self._weights, *self._columns.values()]
        self._step_bytes = SLACK + sum(_chunk_bytes_of_a_step(data) + SLACK_OF_DATA_SET for data in data_sets)

    def write(self, step: StepRecord) -> None:
        """Appends a step. When it returns, the step is in the file even if the process is killed."""
        if not self._open:
            raise Error(f"{self.path}: is closed, because an earlier step could not be written")
        expect_room(self._place, self._step_bytes)
        try:
            self._append(step)
        except (OSError, RuntimeError) as error:
            self._abandon()
            raise Error(f"{self.path}: a step could not be written ({error})") from error
        if self._place != self._target:
            try:
                expect_replaceable(self._target)
                os.replace(self._place, self._target)
            except (OSError, UsageError) as error:
                self._abandon()
                raise Error(f"{self.path}: could not be replaced ({error})") from error
            self._place = self._target
        self.steps += 1

    def _append(self, step: StepRecord) -> None:
        row = self.steps
        self._weighted = self._weighted or step.batch_weight is not None
        for count, (data, values) in enumerate([*zip(self._gradients, step.gradients), *zip(self._moments, step.second_moments or ()),
                                                *zip(self._weights, step.weights or ())], start=1):
            data.resize(row + 1, axis=0)
            data[row] = values
            if count % _MOST_DIRTY_DATA_SETS == 0:
                self._file.flush()
        for name, column in self._columns.items():
            if name != "iteration":
                column.resize(row + 1, axis=0)
                value = getattr(step, name)
                column[row] = value if value is not None else 0 if name == "overflow" else np.nan
        # The number of steps is that of the shortest data set, and this one is written when all others are.
        self._file.flush()
        iteration = self._columns["iteration"]
        iteration.resize(row + 1, axis=0)
        iteration[row] = step.iteration
        self._file.flush()

    def put_readiness(self, ready: np.ndarray, backward_share: np.ndarray) -> None:
        """When gradients are ready: [W, T] and [W], as the document has it. Does nothing once the file is closed."""
        if self._open:
            for data, values in zip(self._readiness, (ready, backward_share)):
                data[...] = values

    def put_reduce_dtype(self, name: str) -> None:
        """The type in which the job reduces all gradients, noted when the file is closed."""
        self._reduce_dtype = name

    def close(self, complete: bool = True) -> None:
        """Closes the file, marked complete, or interrupted. A file without a step is removed: nobody could read it.

        A process that was forked from the one that made the writer leaves the file to that one.
        """
        if not self._open:
            return
        if os.getpid() != self._process:
            self._give_up_file()
            return
        self._open = False
        try:
            self._file.flush()
        except (OSError, RuntimeError) as error:
            self._abandon()
            raise Error(f"{self.path}: could not be finished ({error})") from error
        there = self._is_there()
        mark_as_written(self._file.id.get_vfd_handle())
        self._file.close()
        if not there:
            raise Error(f"{self.path}: was removed, renamed or replaced by another program while it was written; the file that was written "
                        f"has {self.steps} steps and was not finished")
        if self.steps == 0:
            os.remove(self._place)
            return
        with h5py.File(self._target, "r+") as file:
            # In place, which needs no room on the disk.
            file.attrs.modify("complete" if complete else "interrupted", 1)
            if "batch_weight" in self._columns and not self._weighted:
                del file["steps/batch_weight"]
            if self._reduce_dtype is not None:
                try:
                    file.attrs["reduce_dtype"] = self._reduce_dtype
                except (OSError, RuntimeError) as error:
                    warnings.warn(f"{self.path}: the type in which the job reduces, {self._reduce_dtype}, was not noted ({error}); bench "
                                  f"takes it as --baseline-dtype")

    def _abandon(self) -> None:
        """Closes a file that HDF5 could not write. It stays as it is, which is as a killed process would have left it.

        A file without a step is removed.
        """
        useless = self.steps == 0 and self._is_there()
        mark_as_written(self._file.id.get_vfd_handle())
        self._give_up_file()
        if useless:
            os.remove(self._place)

    def _is_there(self) -> bool:
        """Whether the file that is written, which is open, still has its name."""
        try:
            return identity(os.stat(self._place)) == identity(os.fstat(self._file.id.get_vfd_handle()))
        except OSError:
            return False

    def _give_up_file(self) -> None:
        """Closes the file without another byte written to it.

        HDF5 goes on to write what it holds, in close() and at the end of the process, and crashes where it cannot; so
        it is given a file in memory to write that to.
        """
        sink = os.memfd_create("gradtool") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
        os.dup2(sink, self._file.id.get_vfd_handle())
        os.close(sink)
        for _ in range(2):  # HDF5 puts its cache in order in a first attempt that fails
            with contextlib.suppress(OSError, RuntimeError):
                self._file.close()
        self._open = False


def _chunk_bytes_of_a_step(data: h5py.Dataset) -> int:
    """Returns the bytes by which one more step can make a data set grow: whole chunks."""
    chunks = [-(-extent // chunk) for extent, chunk in zip(data.shape[1:], data.chunks[1:])]
    return int(np.prod(chunks, dtype=object) * np.prod(data.chunks, dtype=object)) * data.dtype.itemsize


class BackgroundWriter:
    """Writes steps on a thread of its own while training continues. At most two are in memory: the one that is being
    written, and the next one, which waits for it."""

    def __init__(self, writer: GradientWriter, on_written: Optional[Callable[[StepRecord], None]] = None) -> None:
        self.writer = writer
        self._on_written = on_written
        self._queue: queue.Queue = queue.Queue()
        self._idle = threading.Semaphore(1)  # held from `put` until the step is written
        self._failure: Optional[BaseException] = None
        #: Whether a step is missing in the file because it could not be written.
        self.failed = False
        self._thread = threading.Thread(target=self._work, name="gradtool writer", daemon=True)
        self._thread.start()

    def put(self, step: StepRecord) -> None:
        """Hands a step over, once the one before is written. Raises what went wrong with an earlier one."""
        self._idle.acquire()
        try:
            self._raise()
        except Error:
            self._idle.release()
            raise
        self._queue.put(step)

    def finish(self) -> None:
        """Waits until every step is in the file."""
        self._queue.put(None)
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if isinstance(failure, Error):
                raise failure
            raise Error(f"{self.writer.path}: a step could not be written ({failure})") from failure

    def _work(self) -> None:
        while (step := self._queue.get()) is not None:
            try:
                self.writer.write(step)
                if self._on_written is not None:
                    self._on_written(step)
            except BaseException as error:  # pylint: disable=broad-except
                self._failure, self.failed = error, True
            del step  # before the next one is waited for
            self._idle.release()


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

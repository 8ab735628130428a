"""Writing gradient files (docs/gradient-file.md) with h5py, step by step, and merging those of several ranks."""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import re
import resource
import threading
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence, Union

import h5py
import numpy as np

from ._errors import DataError, Error, UsageError
from ._files import FORMAT, SCHEMA_VERSION, _plain

# The oldest HDF5 that gradtool is built with is 1.10, so files are written in its format, as the program itself writes them. "latest" would
# be that of the HDF5 inside h5py: 2.0 writes virtual data sets that 1.10 takes for damaged.
LIBVER = ("v110", "v110")
MOST_CHUNK_BYTES = 4 << 20
# The bytes that HDF5's own records about a step may take at most, in the file and for each data set.
_SLACK, _SLACK_OF_DATA_SET = 64 << 10, 8 << 10
QUANTITIES = ("gradient", "pseudo_gradient", "weight_delta", "weight", "activation")


VALID_NAMES = "valid are names of 1 to 1024 bytes of UTF-8 without control characters"


def producer(what: str) -> str:
    """The producer of a gradient file: version, commit and the part of the package; the commit is unknown of sources that were not built."""
    from . import __version__
    try:
        from ._commit import COMMIT
    except ImportError:
        COMMIT = "unknown"
    return f"gradtool {__version__} ({COMMIT}, {what})"


def is_valid_name(name: str) -> bool:
    """Whether a tensor may be called so."""
    encoded = name.encode(errors="replace")
    return 1 <= len(encoded) <= 1024 and not any(byte < 32 or byte == 127 for byte in encoded) and encoded.decode() == name


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
        self.path = os.fspath(path)
        self._place = self.path  # where it is written
        if os.path.lexists(self.path):
            if not replace:
                raise existing(self.path)
            if not os.path.isfile(self.path):
                raise UsageError(f"{self.path} is not a plain file and is not replaced")
            self._place += ".new"  # until there is a step, the old file stays
        self.steps = 0
        self._reduce_dtype: Optional[str] = None
        self._weighted = False
        if not os.path.isdir(os.path.dirname(os.path.abspath(self.path))):
            raise Error(f"{self.path}: cannot be written, because there is no such folder")
        expect_room(self._place, len(tensors) * (_SLACK_OF_DATA_SET + 4 * workers) + _SLACK)
        try:
            self._file = h5py.File(self._place, "w", libver=LIBVER)
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
            created=_now())
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
        data_sets = [*self._gradients, *self._moments, *self._weights, *self._columns.values()]
        self._step_bytes = _SLACK + sum(_chunk_bytes_of_a_step(data) + _SLACK_OF_DATA_SET for data in data_sets)

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
        self.steps += 1
        if self._place != self.path:
            os.replace(self._place, self.path)
            self._place = self.path

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
        """Closes the file, marked complete, or interrupted. A file without a step is removed: nobody could read it."""
        if not self._open:
            return
        self._open = False
        try:
            self._file.flush()
        except (OSError, RuntimeError) as error:
            self._abandon()
            raise Error(f"{self.path}: could not be finished ({error})") from error
        self._file.close()
        if self.steps == 0:
            os.remove(self._place)
            return
        with h5py.File(self.path, "r+") as file:
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
        if self.steps == 0:
            os.remove(self._place)


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


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- merging ------------------------------------------------------------------------------------------------------


#: What must be the same in all files, and what it is where it is absent.
_MUST_AGREE = {"model": None, "quantity": "gradient", "inner_steps": None, "averaged": 0, "micro_batches": 1, "ranks": None}


@dataclass(eq=False)
class _Source:
    """A file of one rank, open for reading."""

    path: str
    file: h5py.File
    workers: int
    steps: int
    iterations: np.ndarray
    groups: list = field(default_factory=list)


def _open_source(path: Union[str, os.PathLike]) -> _Source:
    from ._files import GradientFile
    gradient_file = GradientFile(path)
    file = gradient_file._file  # pylint: disable=protected-access
    groups = [file["tensors"][name] for name in sorted(file["tensors"], key=int)]
    if any(group["gradient"].is_virtual for group in groups):
        raise DataError(f"{gradient_file.path}: is itself a merged file; merge the files of the ranks")
    return _Source(gradient_file.path, file, gradient_file.workers, len(gradient_file.steps),
                   gradient_file.steps["iteration"], groups)


def merge(paths: Sequence[Union[str, os.PathLike]], out: Union[str, os.PathLike], *, copy: bool = True,
          replace: bool = False) -> str:
    """Merges the files of ranks into one with all workers, as `gradtool merge` does; returns its path.

    Parameters
    ----------
    paths:
        Files of one rank or more each, in the order of ranks; files that all say which rank they are, are ordered by that.
    copy:
        True makes a file of its own. False makes HDF5 virtual data sets, which refer to the files by name: they take no
        space, and the files must stay beside the merged one.

    Steps that not every file has are left out, with a warning. Files of different models, or that say different things about
    what their values are, raise `DataError`.
    """
    out = os.fspath(out)
    if isinstance(paths, (str, os.PathLike)):
        raise UsageError(f"paths is {os.fspath(paths)!r}; valid is a list of paths, one for each file")
    if not paths:
        raise UsageError("there is no file to merge")
    if os.path.lexists(out) and not replace:
        raise existing(out)
    sources = []
    try:
        for path in paths:
            if os.path.exists(out) and os.path.exists(path) and os.path.samefile(path, out):
                raise UsageError(f"{out} is one of the files to merge")
            if any(os.path.exists(path) and os.path.samefile(path, source.path) for source in sources):
                raise UsageError(f"{os.fspath(path)} is given twice")
            sources.append(_open_source(path))
        if all("rank" in source.file.attrs for source in sources):
            sources.sort(key=lambda source: int(source.file.attrs["rank"]))
        rows = _check_alike(sources)
        temporary = out + ".merging"
        try:
            if copy:
                expect_room(temporary, sum(os.path.getsize(source.path) for source in sources) + _SLACK)
            with h5py.File(temporary, "w", libver=LIBVER) as file:
                _write_merged(file, sources, rows, copy, os.path.dirname(os.path.abspath(out)))
            os.replace(temporary, out)
        except BaseException:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise
    finally:
        for source in sources:
            source.file.close()
    return out


def _check_alike(sources: list) -> list:
    """The rows of the steps that all sources have, for each source. Raises DataError where they are not of one run."""
    first = sources[0]
    ranks = [int(source.file.attrs["rank"]) for source in sources if "rank" in source.file.attrs]
    if len(set(ranks)) != len(ranks):
        raise DataError(f"{first.path} and others: two files are of the same rank")
    for source in sources[1:]:
        if len(source.groups) != len(first.groups):
            raise DataError(f"{source.path}: has {len(source.groups)} tensors, but {first.path} has {len(first.groups)}")
        for mine, theirs in zip(source.groups, first.groups):
            for what in ("name", "shape"):
                if not np.array_equal(mine.attrs[what], theirs.attrs[what]):
                    raise DataError(f"{source.path}: {mine.name} has {what} {mine.attrs[what]}, but in {first.path} it is "
                                    f"{theirs.attrs[what]}")
            if mine["gradient"].dtype != theirs["gradient"].dtype:
                raise DataError(f"{source.path}: {mine.name}/gradient has the type {mine['gradient'].dtype}, but in "
                                f"{first.path} it is {theirs['gradient'].dtype}")
            if ("second_moment" in mine) != ("second_moment" in theirs):
                raise DataError(f"{source.path}: {mine.name} has {'' if 'second_moment' in mine else 'no '}second moments, unlike that "
                                f"in {first.path}")
        for name, default in _MUST_AGREE.items():
            if _plain(source.file.attrs.get(name, default)) != _plain(first.file.attrs.get(name, default)):
                raise DataError(f"{source.path}: has another '{name}' than {first.path}; the files of one job have the same")
    for source in sources:
        if len(set(source.iterations.tolist())) != len(source.iterations):
            raise DataError(f"{source.path}: has an iteration twice, so that steps cannot be matched by it")
    everywhere = set.intersection(*(set(source.iterations.tolist()) for source in sources))
    anywhere = set.union(*(set(source.iterations.tolist()) for source in sources))
    common = [iteration for iteration in first.iterations.tolist() if iteration in everywhere]
    if not common:
        raise DataError(f"the files have no training iteration in common: {_who_has_which(sources)}")
    if missing := anywhere - everywhere:
        lacks = next(source.path for source in sources if min(missing) not in source.iterations)
        warnings.warn(f"steps are left out because not all files have them: {len(missing)}, of which the first is iteration "
                      f"{min(missing)}, which {lacks} lacks ({_who_has_which(sources)})")
    rows = []
    for source in sources:
        where = {int(iteration): row for row, iteration in enumerate(source.iterations)}
        rows.append([where[int(iteration)] for iteration in common])
    return rows


def _who_has_which(sources: list) -> str:
    """Which files have which steps; files that have the same are named together."""
    files: dict = {}
    for source in sources:
        files.setdefault(tuple(sorted(source.iterations.tolist())), []).append(os.path.basename(source.path))
    return "; ".join(f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: "
                     f"{len(steps)} steps{f' of iterations {steps[0]} to {steps[-1]}' if steps else ''}"
                     for steps, names in list(files.items())[:8])


def _write_merged(file: h5py.File, sources: list, rows: list, copy: bool, folder: str) -> None:
    first = sources[0]
    workers = sum(source.workers for source in sources)
    alike = {name: value for name, value in first.file.attrs.items()
             if all(name in s.file.attrs and np.array_equal(s.file.attrs[name], value) for s in sources)}
    alike.pop("rank", None)
    differ = [name for name in ("dataset", "optimizer", "library", "reduce_dtype", "seed", "batch_size")
              if name not in alike and any(name in source.file.attrs for source in sources)]
    if differ:
        warnings.warn(f"attributes are left out because the files differ in them: {', '.join(differ)}")
    if alike.get("ranks", workers) != workers:
        warnings.warn(f"the job had {alike['ranks']} ranks, the files have {workers}")
    complete = all(int(source.file.attrs.get("complete", 0)) for source in sources)
    in_order = all(int(source.file.attrs.get("complete", 0)) or int(source.file.attrs.get("interrupted", 0)) for source in sources)
    file.attrs.update({**alike, "created": _now(), "workers": workers, "complete": 0, "interrupted": int(in_order and not complete)})
    steps = file.create_group("steps")
    for name in ("iteration", "epoch", "learning_rate", "loss", "compute_seconds", "overflow", "batch_weight"):
        having = [source for source in sources if name in source.file["steps"]]
        if not having:
            continue
        if name in ("iteration", "epoch", "learning_rate"):
            if having[0] is first:
                steps.create_dataset(name, data=first.file["steps"][name][:first.steps][rows[0]])
            continue
        if name == "overflow" and len(having) < len(sources):  # a mark has no value for "not known"
            warnings.warn("overflow is left out because not all files have it")
            continue
        if name == "batch_weight":
            rows_of = [source.file["steps"][name][:source.steps][row] if source in having else np.full((len(row), 1), np.nan)
                       for source, row in zip(sources, rows)]
            known = [not np.isnan(weights).any() for weights in rows_of]
            if not all(known):  # a worker counts for something beside others only where all say for what
                if any((~np.isnan(weights)).any() for weights in rows_of):
                    warnings.warn("batch_weight is left out because not all files have it for all steps")
                continue
        columns = [source.file["steps"][name][:source.steps][row] if source in having else
                   np.full((len(row), source.workers), np.nan, "f4" if name == "loss" else "f8") for source, row in zip(sources, rows)]
        steps.create_dataset(name, data=np.concatenate(columns, axis=1))
    if any("readiness" in source.file for source in sources):
        for name, row in (("ready", (len(first.groups),)), ("backward_share", ())):
            parts = [source.file["readiness"][name][...] if "readiness" in source.file else np.full((source.workers, *row), np.nan)
                     for source in sources]
            file[f"readiness/{name}"] = np.concatenate(parts)
    count = len(rows[0])
    for number, group in enumerate(first.groups):
        into = file.create_group(f"tensors/{number:04d}")
        into.attrs.update({name: group.attrs[name] for name in ("name", "shape", "kind", "layout") if name in group.attrs})
        for name in ("gradient", "second_moment", "weight"):
            wide = name != "weight"
            having = sources if wide else sources[:1]  # weights are the same on every rank
            if any(name not in source.groups[number] for source in having):
                continue
            parts = [source.groups[number][name] for source in having]
            n = parts[0].shape[-1]
            shape = (count, workers, n) if wide else (count, n)
            if copy:
                chunks = chunk_shape(workers, n, parts[0].dtype.itemsize)
                data = into.create_dataset(name, shape, parts[0].dtype, chunks=chunks if wide else chunks[::2])
                _copy_values(data, parts, [s.workers for s in having], rows, wide)
            else:
                data = into.create_virtual_dataset(name, _layout(shape, parts, having, rows, wide, folder))
            if "dtype" in parts[0].attrs:
                data.attrs["dtype"] = parts[0].attrs["dtype"]
    file.attrs["complete"] = 1 if complete else 0


def _copy_values(data: h5py.Dataset, parts: list, workers: list, rows: list, wide: bool) -> None:
    piece = MOST_CHUNK_BYTES // 2  # values at a time, so that memory does not grow with the tensor
    n = data.shape[-1]
    for step in range(data.shape[0]):
        at = 0
        for part, width, row in zip(parts, workers, rows):
            for worker in range(width):
                for begin in range(0, n, piece):
                    end = min(n, begin + piece)
                    if wide:
                        data[step, at + worker, begin:end] = part[row[step], worker, begin:end]
                    else:
                        data[step, begin:end] = part[row[step], begin:end]
            at += width


def _layout(shape: tuple, parts: list, sources: list, rows: list, wide: bool, folder: str) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout(shape, parts[0].dtype)
    at = 0
    for part, source, row in zip(parts, sources, rows):
        if os.path.dirname(os.path.abspath(source.path)) != folder:
            raise UsageError(f"{source.path}: is not in the folder of the merged file, which refers to it by name; move "
                             f"it there, or merge with copy=True")
        origin = h5py.VirtualSource(os.path.basename(source.path), part.name, part.shape, part.dtype,
                                    maxshape=part.shape)
        consecutive = row == list(range(row[0], row[0] + len(row)))
        for begin, end in [(0, len(row))] if consecutive else [(i, i + 1) for i in range(len(row))]:
            taken = slice(row[begin], row[begin] + end - begin)
            if wide:
                layout[begin:end, at:at + source.workers] = origin[taken]
            else:
                layout[begin:end] = origin[taken]
        at += source.workers
    return layout

"""Merging the gradient files of ranks into one of all workers (docs/gradient-file.md, "Merged views")."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from dataclasses import dataclass, field
from typing import Sequence, Union

import h5py
import numpy as np

from ._errors import DataError, Error, UsageError
from ._files import GradientFile, _plain
from ._places import as_text, beside, expect_replaceable
from ._writer import LIBVER, MOST_CHUNK_BYTES, SLACK, chunk_shape, existing, expect_room, now

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
    out = as_text(out)
    if isinstance(paths, (str, os.PathLike)):
        raise UsageError(f"paths is {os.fspath(paths)!r}; valid is a list of paths, one for each file")
    if not paths:
        raise UsageError("there is no file to merge")
    if os.path.lexists(out) and not replace:
        raise existing(out)
    expect_replaceable(out)
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
        target = os.path.realpath(out)  # a link stays, and what it points to is replaced
        if os.path.exists(target) and not os.path.isfile(target):
            raise UsageError(f"{out} is not a plain file and is not replaced")
        temporary = beside(target)
        try:
            _write_whole(temporary, sources, rows, copy)
            os.replace(temporary, target)
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
            if isinstance(error, (OSError, RuntimeError)):
                raise Error(f"{out}: could not be merged ({error})") from error
            raise
    finally:
        for source in sources:
            source.file.close()
    return out


def _write_whole(path: str, sources: list, rows: list, copy: bool) -> None:
    """Writes the merged file to a new place. A view, which is small, is made in memory: HDF5 ends the process where a disk is full."""
    if copy:
        expect_room(path, sum(os.path.getsize(source.path) for source in sources) + SLACK)
        with h5py.File(path, "x", libver=LIBVER) as file:
            _write_merged(file, sources, rows, copy, os.path.dirname(path))
        return
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=LIBVER) as file:
        _write_merged(file, sources, rows, copy, os.path.dirname(path))
    with open(path, "xb") as written:
        written.write(memory.getbuffer())


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
    file.attrs.update({**alike, "created": now(), "workers": workers, "complete": 0, "interrupted": int(in_order and not complete)})
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
        if os.path.realpath(os.path.dirname(os.path.abspath(source.path))) != os.path.realpath(folder):
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

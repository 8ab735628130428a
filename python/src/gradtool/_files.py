"""Reading gradient files (docs/gradient-file.md) without loading them."""

from __future__ import annotations

import os
from typing import Any, Iterator, Mapping, Optional, Union

import h5py
import numpy as np

from ._errors import DataError, expect_content

FORMAT = "gradtool.gradients"
SCHEMA_VERSION = 1


def open(path: Union[str, os.PathLike]) -> "GradientFile":
    """Opens a gradient file for reading, also one that is still being written or whose writer was killed.

    >>> with open("datasets/lenet5-fashion-mnist.h5") as run:
    ...     print(run.workers, len(run.steps), list(run.tensors)[0])
    ...     run["conv1.weight"].gradient[0, 0].shape
    2 3 conv1.weight
    (6, 1, 5, 5)
    """
    return GradientFile(path)


class GradientFile:
    """A gradient file. Values are read when they are indexed, and only those."""

    def __init__(self, path: Union[str, os.PathLike]) -> None:
        self.path = os.fspath(path)
        if not os.path.exists(self.path):
            raise DataError(f"{self.path}: there is no such file")
        try:
            self._file = _open_hdf5(self.path)
        except OSError as error:
            if os.path.isfile(self.path):
                expect_content(self.path)
            raise DataError(f"{self.path}: cannot be read as HDF5 ({error})") from error
        try:
            self._load()
        except DataError:
            self._file.close()
            raise
        except (KeyError, OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            self._file.close()
            raise DataError(f"{self.path}: is damaged ({error}); 'gradtool validate' says what is wrong") from error

    def _load(self) -> None:
        attributes = self._file.attrs
        if attributes.get("format") != FORMAT:
            raise DataError(f"{self.path}: is not a gradient file: its attribute 'format' is not '{FORMAT}'")
        if attributes.get("schema_version") != SCHEMA_VERSION:
            raise DataError(f"{self.path}: has schema version {attributes.get('schema_version')}; this gradtool reads "
                            f"version {SCHEMA_VERSION}")
        if "tensors" not in self._file or "steps/iteration" not in self._file:
            raise DataError(f"{self.path}: lacks /tensors or /steps/iteration; 'gradtool validate' says what is wrong")
        self._check_places()
        #: The attributes at the root: workers, model, dataset, complete, ...
        self.attributes: dict = {name: _plain(value) for name, value in attributes.items()}
        #: How many workers' gradients it holds.
        self.workers: int = int(self.attributes["workers"])
        #: False while it is being written, and after a writer that died.
        self.complete: bool = bool(self.attributes.get("complete", 0))
        groups = self._groups()
        self._check_stored(groups)
        if any(data.is_virtual for data in _data_sets(groups)) and self._check_view(groups) and not self._file.swmr_mode:
            self._file.close()
            self._file = h5py.File(os.path.realpath(self.path), "r", swmr=True)
            groups = self._groups()
        # A step that is being written may be there in part; the shortest data set says how many are whole.
        count = min([len(self._file["steps/iteration"])] + [len(group["gradient"]) for group in groups])
        #: The tensors by name, in forward order.
        self.tensors: Mapping[str, Tensor] = {tensor.name: tensor for tensor in (Tensor(g, count) for g in groups)}
        #: Columns of the captured steps: iteration [S], and where the file has them epoch, learning_rate [S], loss,
        #: compute_seconds, overflow, batch_weight [S, W].
        self.steps: Steps = Steps({name: self._file["steps"][name][:count] for name in self._columns()})
        #: Where the file has it, when gradients are ready: the shares of the backward pass [W, T], tensors in forward order, and the
        #: share of that pass in an iteration's computation [W].
        self.readiness: Optional[dict] = {name: self._file["readiness"][name][...] for name in ("ready", "backward_share")} \
            if "readiness" in self._file else None

    def _columns(self) -> list:
        """The columns of /steps that the document knows; others are for others."""
        return [name for name in ("iteration", "epoch", "learning_rate", "loss", "compute_seconds", "overflow", "batch_weight")
                if name in self._file["steps"]]

    def _check_places(self) -> None:
        """Raises DataError where something is a link or has its values in another file, which could be any file, and where a data set
        has another number of dimensions, or no numbers."""
        for name in ("tensors", "steps", *(["readiness"] if "readiness" in self._file else [])):
            self._member(self._file, name, h5py.Group)
        for name in self._columns():
            self._check_data(self._file["steps"], name, 1 if name in ("iteration", "epoch", "learning_rate") else 2)
        for name in ("ready", "backward_share") if "readiness" in self._file else ():
            self._check_data(self._file["readiness"], name, 2 if name == "ready" else 1)
        for number in self._file["tensors"]:
            group = self._member(self._file["tensors"], number, h5py.Group)
            for name, dimensions in (("gradient", 3), ("second_moment", 3), ("weight", 2)):
                if name in group or name == "gradient":
                    self._check_data(group, name, dimensions, may_be_view=True)

    def _member(self, group: h5py.Group, name: str, kind: type) -> Any:
        place = f"{group.name.rstrip('/')}/{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise DataError(f"{self.path}: {place} is missing or is a link; valid are objects of the file itself")
        found = group[name]
        if not isinstance(found, kind):
            raise DataError(f"{self.path}: {place} is no {'data set' if kind is h5py.Dataset else 'group'}")
        return found

    def _check_data(self, group: h5py.Group, name: str, dimensions: int, may_be_view: bool = False) -> None:
        data = self._member(group, name, h5py.Dataset)
        creation = data.id.get_create_plist()
        if creation.get_external_count() > 0 or (data.is_virtual and not may_be_view):
            raise DataError(f"{self.path}: {data.name} has its values in another file")
        if data.ndim != dimensions or data.dtype.kind not in "fiub":
            raise DataError(f"{self.path}: {data.name} has {data.ndim} dimensions of the type {data.dtype}; valid are {dimensions}, of numbers")

    def _groups(self) -> list:
        return [self._file["tensors"][name] for name in sorted(self._file["tensors"], key=int)]

    def _check_stored(self, groups: list) -> None:
        """Raises DataError where the file is shorter than its values, which HDF5 in SWMR mode would read as zeros."""
        stored = sum(data.id.get_storage_size() for data in _data_sets(groups) if not data.is_virtual)
        size = os.path.getsize(self.path)
        if stored > size:
            raise DataError(f"{self.path}: is truncated: its gradients and weights take {stored} bytes, and it has {size}")
        for data in _data_sets(groups) if self.complete else []:
            if data.chunks and data.id.get_num_chunks() < np.prod([-(-d // c) for d, c in zip(data.shape, data.chunks)]):
                raise DataError(f"{self.path}: {data.name} was never written in full, although the file says that it is complete")

    def _check_view(self, groups: list) -> bool:
        """Raises DataError where a merged view refers to what is not there, which HDF5 would silently read as zeros.

        Returns whether one of the files opens in SWMR mode alone, in which the view has to be opened then, too.
        """
        folder = os.path.dirname(os.path.realpath(self.path))
        sources: dict = {}
        try:
            for data in _data_sets(groups):
                if not data.is_virtual:
                    continue
                blocks = data.virtual_sources()
                for block in blocks:
                    name = block.file_name
                    if name in ("", ".", "..") or "/" in name or "%" in name:
                        raise DataError(f"{self.path}: {data.name} refers to the file {name!r}; valid is the name of a file in the same "
                                        f"folder, without / and %")
                    if name not in sources:
                        sources[name] = self._open_source(os.path.join(folder, name))
                    self._check_block(data, block, sources[name])
                if sum(block.vspace.get_select_npoints() for block in blocks) != data.size:
                    raise DataError(f"{self.path}: {data.name} does not refer to a file for each of its values")
            return any(source._file.swmr_mode for source in sources.values())
        finally:
            for source in sources.values():
                source.close()

    def _open_source(self, path: str) -> "GradientFile":
        if not os.path.isfile(path):
            raise DataError(f"{self.path}: refers to {path}, which is not there; keep the files of a merged view together, or merge "
                            f"them with 'gradtool merge --copy'")
        source = GradientFile(path)
        if any(data.is_virtual for data in _data_sets(source._groups())):
            source.close()
            raise DataError(f"{self.path}: refers to {path}, which is a merged view itself")
        return source

    def _check_block(self, data: h5py.Dataset, block: Any, source: "GradientFile") -> None:
        """A block lies in the whole steps of a data set of the same name, number of elements and type."""
        found = source._file.get(block.dset_name)
        fits = isinstance(found, h5py.Dataset) and found.shape[1:][-1:] == data.shape[-1:] and found.dtype == data.dtype and \
            os.path.basename(found.name) == os.path.basename(data.name)
        if fits and block.src_space.get_select_type() == h5py.h5s.SEL_ALL:
            fits = block.vspace.get_select_npoints() == found.size and len(found) == len(source.steps)
        elif fits:
            ends = block.src_space.get_select_bounds()[1]
            fits = all(end < extent for end, extent in zip(ends, (len(source.steps), *found.shape[1:])))
        if not fits:
            raise DataError(f"{self.path}: {data.name} refers to values of {source.path} that it does not have")

    def __getitem__(self, name: str) -> "Tensor":
        try:
            return self.tensors[name]
        except KeyError:
            raise KeyError(f"{self.path} has no tensor '{name}'; it has {', '.join(self.tensors)}") from None

    def __iter__(self) -> Iterator["Tensor"]:
        return iter(self.tensors.values())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "GradientFile":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return (f"<gradtool.GradientFile {self.path!r}: {len(self.steps)} steps, {self.workers} workers, "
                f"{len(self.tensors)} tensors>")


class Steps(Mapping[str, np.ndarray]):
    """The columns of /steps by name, each an array whose first axis is the step."""

    def __init__(self, columns: dict) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of steps S."""
        return len(self._columns["iteration"])


class Tensor:
    """One parameter tensor: `name`, `shape`, `kind`, `layout`, and its arrays."""

    def __init__(self, group: h5py.Group, steps: int) -> None:
        self.name: str = str(group.attrs["name"])
        self.shape: tuple = tuple(int(extent) for extent in group.attrs["shape"])
        self.kind: str = str(group.attrs.get("kind", "other"))
        self.layout: str = str(group.attrs.get("layout", ""))
        #: [S, W, *shape]: each worker's own gradient.
        self.gradient: Values = Values(group["gradient"], steps, self.shape)
        #: [S, W, *shape], or None.
        self.second_moment: Optional[Values] = _optional(group, "second_moment", steps, self.shape)
        #: [S, *shape], or None.
        self.weight: Optional[Values] = _optional(group, "weight", steps, self.shape)

    def __repr__(self) -> str:
        return f"<gradtool tensor {self.name!r} {self.shape} {self.kind}>"


class Values:
    """An array in the file, indexed by step, worker and then the tensor's own axes; read when it is indexed.

    float16 stays float16; bfloat16, which NumPy lacks, becomes float32, exactly. `bits` are the stored values.
    """

    def __init__(self, data: h5py.Dataset, steps: int, shape: tuple) -> None:
        self.bits = data
        self._shape = shape
        self._bfloat16 = _plain(data.attrs.get("dtype", "")) == "bfloat16"
        self.shape = (steps,) + data.shape[1:-1] + shape
        self.dtype = np.dtype("f4") if self._bfloat16 else data.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        leading = len(self.shape) - len(self._shape)
        if Ellipsis in index:
            where = index.index(Ellipsis)
            fill = len(self.shape) - len(index) + 1
            index = index[:where] + (slice(None),) * fill + index[where + 1:]
        if len(index) > len(self.shape):
            raise IndexError(f"{len(index)} indices for an array of {len(self.shape)} dimensions")
        head = tuple(self._within(i, axis) for axis, i in enumerate(index[:leading]))
        values = self.bits[head + (slice(None),) * (leading - len(head))]
        if self._bfloat16:
            values = (values.astype("u4") << 16).view("f4")
        values = values.reshape(values.shape[:-1] + self._shape) if self.bits.ndim > leading else values
        kept = sum(isinstance(i, slice) or np.ndim(i) > 0 for i in head) + leading - len(head)
        return values[(slice(None),) * kept + index[leading:]]

    def _within(self, index: Any, axis: int) -> Any:
        """The index with the length of the axis known, since the data set may be one step longer."""
        if isinstance(index, slice):
            return slice(*index.indices(self.shape[axis]))
        if isinstance(index, (int, np.integer)):
            if not -self.shape[axis] <= index < self.shape[axis]:
                raise IndexError(f"index {index} on an axis of length {self.shape[axis]}")
            return int(index) % self.shape[axis]
        return index

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        values = self[()]
        return values if dtype is None else values.astype(dtype)


def _open_hdf5(path: str) -> h5py.File:
    # The files that a view refers to are looked for beside the file itself, where the path is a symbolic link.
    where = os.path.realpath(path)
    if not os.path.isfile(where):
        raise OSError("it is not a regular file")
    try:
        return h5py.File(where, "r")
    except OSError as error:
        # Only a file that is marked as being written, or whose writer was killed, may be opened in SWMR mode: there HDF5 does not compare
        # the file's length with its header's, and reads what is missing as zeros.
        if "already open for" not in str(error):
            raise
        return h5py.File(where, "r", swmr=True)


def _data_sets(groups: list) -> list:
    return [group[name] for group in groups for name in ("gradient", "second_moment", "weight") if name in group]


def _optional(group: h5py.Group, name: str, steps: int, shape: tuple) -> Optional[Values]:
    return Values(group[name], steps, shape) if name in group else None


def _plain(value: Any) -> Any:
    """An attribute as a str, an int, a float or a list."""
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value

"""Importing PyTorch checkpoints and Hugging Face folders. Weights only: no pickle of a checkpoint is executed."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from ._errors import DataError, UnavailableError, UsageError, expect_content, list_names
from ._writer import QUANTITIES, VALID_NAMES, GradientWriter, StepRecord, TensorSpec, is_valid_name, part_of_mixture, producer

Path = Union[str, os.PathLike]
# Safetensors' names of types: what NumPy calls them, and what the gradient file does. bfloat16 travels as its bits.
_SAFETENSORS = {"F64": ("<f8", "float32"), "F32": ("<f4", "float32"), "F16": ("<f2", "float16"), "BF16": ("<u2", "bfloat16")}
_MOST_HEADER = 100 << 20
# Why tensors are left out.
_EMPTY, _WHOLE_NUMBERS = "they have no elements", "they hold whole numbers"


class _Checkpoint(Mapping[str, Callable[[], np.ndarray]]):
    """Tensors by name, each loaded when it is called for; `specs` tells their shapes and types beforehand."""

    def __init__(self) -> None:
        self.loaders: dict = {}
        self.specs: dict = {}
        self.files: list = []
        self.left_out: dict = {}  # by reason, names

    def add(self, name: str, shape: tuple, dtype: str, load: Callable[[], np.ndarray], where: Path) -> None:
        """Takes a tensor that has elements; float64 is said to be float32 and may be loaded as it is."""
        if not is_valid_name(name):
            raise DataError(f"{where}: a tensor is called {name[:80]!r}; {VALID_NAMES}")
        if len(shape) > 32:
            raise DataError(f"{where}: tensor {name} has {len(shape)} dimensions; valid are at most 32")
        if name in self.specs:
            raise DataError(f"{where}: tensor {name} is there twice")
        self.specs[name], self.loaders[name] = (shape, dtype), load

    def leave_out(self, name: object, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(str(name))

    def rename(self, names: dict) -> None:
        self.specs = {names[name]: spec for name, spec in self.specs.items()}
        self.loaders = {names[name]: load for name, load in self.loaders.items()}

    def __getitem__(self, name: str) -> Callable[[], np.ndarray]:
        return self.loaders[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.loaders)

    def __len__(self) -> int:
        return len(self.loaders)


def _add_safetensors(checkpoint: _Checkpoint, path: str) -> None:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER):
            raise DataError(f"{path}: is not a safetensors file: its header says that it is {length} bytes long")
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: the safetensors header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise DataError(f"{path}: the safetensors header is not valid: it is no object of tensors")
    places = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, offsets = (entry.get(what) if isinstance(entry, dict) else None for what in ("dtype", "shape", "data_offsets"))
        if not (isinstance(dtype, str) and _are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
            raise DataError(f"{path}: the safetensors header is not valid: tensor {name!r} has not dtype, shape and data_offsets as a text "
                            f"and two lists of whole numbers")
        places.append((*offsets, name))
        if dtype not in _SAFETENSORS and dtype.startswith(("F", "BF", "C")):
            raise DataError(f"{path}: tensor {name!r} has values of type {dtype}; valid are {', '.join(_SAFETENSORS)}: convert it, "
                            f"with its scales, to one of these")
        if dtype not in _SAFETENSORS or 0 in shape:
            checkpoint.leave_out(name, _EMPTY if 0 in shape else _WHOLE_NUMBERS)
            continue
        kind, stored = _SAFETENSORS[dtype]
        begin, end = offsets
        bytes_needed = math.prod(shape) * np.dtype(kind).itemsize
        if not begin <= end <= size - 8 - length or end - begin != bytes_needed:
            raise DataError(f"{path}: tensor {name!r} of shape {shape} lies at bytes {begin} to {end}, which does not fit")

        def load(kind: str = kind, begin: int = begin, shape: tuple = tuple(shape)) -> np.ndarray:
            return np.memmap(path, kind, "r", 8 + length + begin, shape=(math.prod(shape),))

        checkpoint.add(name, tuple(shape), stored, load, path)
    next_begin = 0
    for begin, end, name in sorted(places):
        if begin != next_begin or end < begin:
            raise DataError(f"{path}: tensor {name!r} lies at bytes {begin} to {end}, and the one before ends at {next_begin}; tensors must "
                            f"lie side by side")
        next_begin = end
    if next_begin != size - 8 - length:
        raise DataError(f"{path}: has {size - 8 - length - next_begin} bytes behind its last tensor; must have none")


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _without_repetition(pairs: list) -> dict:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def _add_torch(checkpoint: _Checkpoint, path: str, key: Optional[str]) -> None:
    try:
        import torch
    except ImportError as missing:
        raise UnavailableError(f"{path} is a PyTorch checkpoint, and torch is not installed here") from missing
    import inspect
    if "weights_only" not in inspect.signature(torch.load).parameters:
        raise UnavailableError(f"torch {torch.__version__} cannot load weights without executing pickle; torch 1.13 or later can")
    from ._modules import is_dense
    options: dict = {"map_location": "cpu", "weights_only": True}
    if "mmap" in inspect.signature(torch.load).parameters:
        options["mmap"] = True
    try:
        try:
            state = torch.load(path, **options)
        except (RuntimeError, ValueError):  # files of old versions cannot be mapped into memory
            options.pop("mmap", None)
            state = torch.load(path, **options)
    except Exception as error:
        # PyTorch's own advice is to load it with weights_only=False, which would execute it.
        foreign = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise DataError(f"{path}: cannot be loaded as weights alone, because it " + (
            f"refers to {foreign[1]}, and what is no tensor could run a program; save its state_dict() instead"
            if foreign else "is damaged or no checkpoint of PyTorch")) from error
    if key is None and isinstance(state, dict):
        key = next((k for k in ("state_dict", "model", "model_state_dict", "module") if isinstance(state.get(k), dict)), None)
    if key is not None:
        if not isinstance(state, dict) or not isinstance(state.get(key), dict):
            raise DataError(f"{path}: has no dictionary '{key}'; it has {_keys(state)}")
        state = state[key]
    names = {torch.float32: "float32", torch.float64: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
    if not isinstance(state, dict):
        raise DataError(f"{path}: is no dictionary of tensors; it has {_keys(state)}")
    if not any(isinstance(value, torch.Tensor) for value in state.values()):
        raise DataError(f"{path}: has no tensors but {_keys(state)}; key= names the dictionary that has them")
    seen: dict = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            if isinstance(tensor, (dict, list, tuple)) and tensor:
                checkpoint.leave_out(name, "they are no tensors (key= names a dictionary of tensors)")
            continue
        if tensor.numel() == 0:
            checkpoint.leave_out(name, _EMPTY)
            continue
        if tensor.layout != torch.strided or tensor.is_meta:
            raise DataError(f"{path}: tensor {name!r} is {'without values (meta)' if tensor.is_meta else 'sparse'}; valid are dense tensors")
        if tensor.dtype not in names:
            if tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized:
                raise DataError(f"{path}: tensor {name!r} has values of type {tensor.dtype}; valid are float32, float64, float16 and "
                                f"bfloat16: convert it, with its scales, to one of these")
            checkpoint.leave_out(name, _WHOLE_NUMBERS)
            continue
        # Tied weights may be transposed: what counts is which memory they fill.
        place = (tensor.data_ptr(), tensor.dtype, tensor.numel() if is_dense(tensor) else (tensor.shape, tensor.stride()))
        if place in seen:
            warnings.warn(f"{path}: {name} is tied to {seen[place]}, the same values in memory, and is taken once")
            continue
        seen[place] = name

        def load(tensor: Any = tensor) -> np.ndarray:
            tensor = tensor.detach().contiguous().view(-1)
            if tensor.dtype == torch.bfloat16:
                return tensor.view(torch.int16).numpy().view(np.uint16)
            return tensor.numpy()

        checkpoint.add(str(name), tuple(tensor.shape), names[tensor.dtype], load, path)


def _keys(state: Any) -> str:
    """Describes an object of a checkpoint, for a sentence."""
    if not isinstance(state, dict):
        return f"one {type(state).__name__}"
    names = [f"'{name}'" for name in list(state)[:10]] + (["..."] if len(state) > 10 else [])
    return ", ".join(names) or "nothing"


def _open_checkpoint(path: Path, key: Optional[str]) -> _Checkpoint:
    path = os.fspath(path)
    checkpoint = _Checkpoint()
    files = [path]
    if os.path.isdir(path):
        files = _files_of_folder(path)
    elif not os.path.exists(path):
        raise DataError(f"{path}: there is no such file")
    checkpoint.files = files
    for file in files:
        expect_content(file)
        if file.endswith(".safetensors"):
            _add_safetensors(checkpoint, file)
        elif file.endswith((".pt", ".pth", ".bin", ".ckpt")):
            _add_torch(checkpoint, file, key)
        elif file.endswith((".distcp", ".metadata")):
            raise _distributed(os.path.dirname(file) or ".")
        else:
            raise UsageError(f"{file}: is of no known kind; valid are .safetensors, .pt, .pth, .bin, .ckpt and folders of "
                             f"Hugging Face; 'gradtool import' takes .npy, .npz and raw files")
    if not checkpoint.specs:
        raise DataError(f"{path}: holds no tensor of floating-point values")
    return checkpoint


def _distributed(folder: str) -> UsageError:
    return UsageError(f"{folder}: is a checkpoint of torch.distributed.checkpoint; make one file of it with "
                      f"torch.distributed.checkpoint.format_utils.dcp_to_torch_save({folder!r}, 'checkpoint.pt')")


def _files_of_folder(folder: str) -> list:
    """The files of weights in a folder as Hugging Face's libraries write it."""
    for name in ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin"):
        index = os.path.join(folder, name + ".index.json")
        if os.path.exists(index):
            expect_content(index)
            try:
                with open(index, encoding="utf-8") as file:
                    parts = set(json.load(file)["weight_map"].values())
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
                raise DataError(f"{index}: is not an index of weights: it has no weight_map of tensors' names to files") from error
            if not parts:
                raise DataError(f"{index}: names no file in its weight_map")
            for part in parts:
                if not isinstance(part, str) or os.path.basename(part) != part or not os.path.isfile(os.path.join(folder, part)):
                    raise DataError(f"{index}: names {part!r}, which is not in the folder")
            parts = sorted(parts)
            return [os.path.join(folder, part) for part in parts]
        if os.path.exists(os.path.join(folder, name)):
            return [os.path.join(folder, name)]
    if any(name == ".metadata" or name.endswith(".distcp") for name in os.listdir(folder)):
        raise _distributed(folder)
    raise DataError(f"{folder}: has no weights; looked for model.safetensors, adapter_model.safetensors, pytorch_model.bin "
                    f"and their .index.json")


def _without_wrappers(names: Iterable[str]) -> dict:
    """Each name without what wrappers of a module add: torch.compile and FSDP anywhere, DataParallel before all names."""
    added = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    bare = {name: ".".join(part for part in name.split(".") if part not in added) for name in names}
    while bare and all(name.startswith("module.") for name in bare.values()):
        bare = {name: inner[len("module."):] for name, inner in bare.items()}
    return bare


def _warn_of_left_out(steps: list, opened: list) -> None:
    """Once for each list of names, which the checkpoints of a training have in common."""
    said: set = set()
    for path, checkpoint in ((path, checkpoint) for step, row in zip(steps, opened) for path, checkpoint in zip(step, row)):
        for reason, names in checkpoint.left_out.items():
            if (reason, tuple(names)) not in said:
                said.add((reason, tuple(names)))
                warnings.warn(f"{os.fspath(path)}: not taken, because {reason}: {list_names(names)}")


def _let_names_agree(steps: list, opened: list) -> None:
    """Takes the names within wrappers if checkpoints name their tensors differently because some of them were saved from a wrapper."""
    paths, checkpoints = [path for step in steps for path in step], [checkpoint for row in opened for checkpoint in row]
    if all(checkpoint.specs.keys() == checkpoints[0].specs.keys() for checkpoint in checkpoints):
        return
    bare = [_without_wrappers(checkpoint.specs) for checkpoint in checkpoints]
    inner = [set(names.values()) for names in bare]
    if any(names != inner[0] or len(names) != len(checkpoint.specs) for names, checkpoint in zip(inner, checkpoints)):
        return
    for path, checkpoint, names in zip(paths, checkpoints, bare):
        changed = next((name for name in names if names[name] != name), None)
        if changed is not None:
            warnings.warn(f"{os.fspath(path)}: was saved from a wrapper of the model; its tensor {changed} is taken as {names[changed]}")
            checkpoint.rename(names)


def kind_of(name: str, shape: tuple) -> tuple[str, str]:
    """Kind and layout of a tensor of which only name and shape are known, as near to what Capture says as these tell."""
    lower = name.lower()
    if lower.endswith("bias") or "bias" in lower.rpartition(".")[2]:  # bias_ih_l0 of a recurrent layer
        return "bias", ""
    if len(shape) == 1:
        return ("norm", "") if any(word in lower for word in ("norm", "ln_", ".ln", "bn", "layernorm")) else ("other", "")
    if any(word in lower for word in ("embed", "wte", "wpe")) and len(shape) == 2:
        return "embedding", "VD"
    if part := part_of_mixture(name, shape):
        return part, "OI" if len(shape) == 2 else ""
    if len(shape) == 4:
        return "conv", "OIHW"
    if len(shape) == 2 and {"lstm", "gru", "rnn", "ih", "hh"} & {word.rstrip("0123456789") for word in re.split(r"[./_-]", lower)}:
        return "recurrent", "OI"
    return ("linear", "OI") if len(shape) == 2 else ("other", "")


def import_checkpoint(sources: Union[Path, Sequence[Union[Path, Sequence[Path]]]], out: Path, *, quantity: str = "weight",
                      difference: bool = False, negate: bool = False, inner_steps: Optional[int] = None,
                      averaged: bool = False, iterations: Optional[Sequence[int]] = None, key: Optional[str] = None,
                      replace: bool = False, **attributes: Any) -> str:
    """Makes a gradient file of checkpoints: PyTorch's (.pt, .pth, .bin, .ckpt), safetensors, folders of Hugging Face.

    Parameters
    ----------
    sources:
        One path; or a list, a step each; or a list of lists, where each step names a path for every worker.
    out:
        The file to write.
    quantity:
        What the tensors are: gradient, pseudo_gradient, weight_delta, weight or activation.
    difference:
        Writes the difference of each step to the next one (so one step less), as weight_delta; with `negate`,
        before less after, as pseudo_gradient of `inner_steps` local steps. It is computed in float64, and its iteration
        is that of the earlier step, as `gradtool import` has it.
    averaged:
        True where the values are the same on all workers because they were averaged before they were stored.
    iterations:
        The training iteration of each source; 0, 1, 2, ... when left out.
    key:
        Which dictionary of a PyTorch checkpoint holds the tensors; looked for under the usual names when left out.
    attributes:
        Further attributes for the file: model, dataset, optimizer, seed, batch_size.

    Nothing of a checkpoint is executed: PyTorch loads weights alone. Values are kept in their type, except that float64
    becomes float32, and so does a difference. Raises `DataError` with one sentence for what is not a checkpoint.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    steps = [[step] if isinstance(step, (str, os.PathLike)) else list(step) for step in sources]
    if not steps or any(len(step) != len(steps[0]) or not step for step in steps):
        raise UsageError("sources are not one path for each worker in every step")
    if quantity not in QUANTITIES:
        raise UsageError(f"quantity is '{quantity}'; valid is {', '.join(QUANTITIES)}")
    if difference and len(steps) < 2:
        raise UsageError("a difference needs at least two checkpoints")
    if negate and not difference:
        raise UsageError("negate goes with difference")
    if iterations is not None and len(iterations) != len(steps):
        raise UsageError(f"there are {len(iterations)} iterations for {len(steps)} steps")
    if inner_steps is not None and not (isinstance(inner_steps, (int, np.integer)) and inner_steps >= 1):
        raise UsageError(f"inner_steps is {inner_steps!r}; valid is 1 or more")
    if difference:
        quantity = "pseudo_gradient" if negate else "weight_delta"
    opened = [[_open_checkpoint(path, key) for path in step] for step in steps]
    first = opened[0][0]
    for file in (file for row in opened for checkpoint in row for file in checkpoint.files):
        if os.path.exists(out) and os.path.samefile(file, out):
            raise UsageError(f"{os.fspath(out)} is one of the checkpoints to import; give another path")
    _warn_of_left_out(steps, opened)
    _let_names_agree(steps, opened)
    for step, row in zip(steps, opened):
        for path, checkpoint in zip(step, row):
            if checkpoint.specs != first.specs:
                name = next(n for n in sorted({*checkpoint.specs, *first.specs}) if checkpoint.specs.get(n) != first.specs.get(n))
                raise DataError(f"{os.fspath(path)}: tensor {name} is {_told(checkpoint, name)}, but {_told(first, name)} in "
                                f"{os.fspath(steps[0][0])}")
    workers = len(steps[0])
    specs = [TensorSpec(name, shape, *kind_of(name, shape), "float32" if difference else dtype)
             for name, (shape, dtype) in first.specs.items()]
    writer = GradientWriter(out, specs, workers, {
        "producer": producer("Python, import_checkpoint"), "quantity": None if quantity == "gradient" else quantity,
        "inner_steps": inner_steps, "averaged": 1 if averaged else None, **attributes}, (), replace)
    try:
        for number in range(len(steps) - 1 if difference else len(steps)):
            def values(row: list = opened[number], later: list = opened[number + 1 if difference else number]) -> Iterator[np.ndarray]:
                for spec, (name, (_, dtype)) in zip(specs, first.specs.items()):
                    rows = []
                    for now, then in zip(row, later):
                        value = now[name]()
                        if difference:
                            change = _as_double(then[name](), dtype) - _as_double(value, dtype)
                            value = -change if negate else change
                        rows.append(value.astype("f4") if value.dtype == np.float64 else value)
                    yield np.stack(rows) if workers > 1 else rows[0].reshape(1, -1)
            iteration = number if iterations is None else iterations[number]
            writer.write(StepRecord(int(iteration), values()))  # type: ignore[arg-type]
    except BaseException:
        writer.steps = 0  # half a file is of no use: close() removes it
        writer.close(complete=False)
        raise
    writer.close()
    return os.fspath(out)


def _as_double(values: np.ndarray, dtype: str) -> np.ndarray:
    return ((values.astype("u4") << 16).view("f4") if dtype == "bfloat16" else values).astype("f8")


def _told(checkpoint: _Checkpoint, name: str) -> str:
    if name not in checkpoint.specs:
        return "not there"
    shape, dtype = checkpoint.specs[name]
    return f"{dtype} {list(shape)}"

"""Codecs of gradtool on arrays of NumPy and tensors of PyTorch."""

from __future__ import annotations

import json
import math
import numbers
import operator
import sys
import threading
from typing import Any, Optional

import numpy as np

from . import _core
from ._errors import DataError, UnavailableError, UsageError

# The kinds of the gradient file.
_KINDS = ("conv", "linear", "expert", "router", "embedding", "recurrent", "norm", "bias", "other")


def codecs() -> list[dict]:
    """All codecs of this build, as `gradtool list codecs --json -` has them.

    >>> next(codec["payload"] for codec in codecs() if codec["name"] == "fp16")
    '16 n bits'
    """
    return json.loads(_core.codecs())


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _device(array: Any) -> str:
    return str(array.device) if _is_torch(array) else "cpu"


def _array(values: Any, what: str) -> Any:
    """A tensor of PyTorch or an array of NumPy, of real numbers."""
    if _is_torch(values):
        if values.layout != sys.modules["torch"].strided or values.is_quantized:
            raise UsageError(f"{what} is {'quantised' if values.is_quantized else 'sparse'}; valid are dense tensors of real numbers, "
                             f"such as its {'dequantize()' if values.is_quantized else 'to_dense()'}")
        if values.is_complex() or values.dtype == sys.modules["torch"].bool:
            raise UsageError(f"{what} has the type {values.dtype}; valid are real numbers")
        return values.detach()
    if isinstance(values, np.ma.MaskedArray):
        raise UsageError(f"{what} is a masked array, whose mask no codec knows; valid is its filled(0)")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UsageError(f"{what} is no array of numbers ({error})") from error
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{what} has the type {array.dtype}; valid are real numbers")
    return array


def _flat_floats(array: Any, what: str) -> Any:
    """Returns the result of `_array` as contiguous float32 of one dimension; copies only if it is not that already."""
    xp = sys.modules["torch"] if _is_torch(array) else np
    if _is_torch(array):
        flat = array.to(xp.float32).contiguous().view(-1)
    else:
        with np.errstate(over="ignore"):
            flat = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
    # A value of a wider type that float32 cannot hold is refused, not encoded silently as something else.
    if str(array.dtype).rpartition(".")[2] in ("int32", "int64", "uint32", "uint64") and 0 not in array.shape:
        if int(array.max()) > 2 ** 24 or int(array.min()) < -2 ** 24:
            raise UsageError(f"{what} has integers beyond 2^24, which float32 rounds; valid are smaller ones, or floating-point numbers")
    elif array.dtype.itemsize > 4 if xp is np else array.dtype == xp.float64:
        if (infinite := xp.isinf(flat)).any() and bool((infinite & xp.isfinite(array.reshape(-1))).any()):
            raise UsageError(f"{what} has finite numbers that are infinite in float32; valid are magnitudes up to 3.4e38")
    return flat


def _whole(what: str, value: Any, least: int = 0, below: Optional[int] = None) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least or (below is not None and value >= below):
        raise UsageError(f"{what} is {value!r}; valid is a whole number from {least} on" + (
            f" and below 2^{below.bit_length() - 1}" if below is not None else ""))
    return int(value)


def _stream(array: Any) -> int:
    """The CUDA stream that the array's framework works on now, as an integer; 0 on the host."""
    if _is_torch(array) and array.is_cuda:
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    return 0


def _kind_of(shape: tuple) -> tuple[str, str]:
    """Kind and layout of a tensor of which only the shape is known."""
    if len(shape) == 4:
        return "conv", "OIHW"
    return ("linear", "OI") if len(shape) == 2 else ("other", "")


class Codec:
    """One codec with its parameters, and what one rank keeps for it from step to step.

    Parameters
    ----------
    spec:
        As on the command line, `name:key=value,...`, for example `"topk:ratio=0.01,ef=on"`. `ef=on|off` switches error
        feedback, which many codecs have on by default. With `ef=ef21` or `ef=ef21m` payloads decode to differences: add them to what
        was decoded before.
    rank, ranks:
        Which of how many ranks this is. Random draws differ between ranks, and a few codecs clip by their number.
    seed:
        Of all random draws. Payloads depend on nothing but seed, step, rank, tensor and values: they are the bytes that
        `gradtool bench --seed` sends for the same ones.
    threads:
        Threads of one encode or decode on the host. The bytes do not depend on it.

    `encode` takes arrays of NumPy or tensors of PyTorch, on the CPU or on a GPU, of any shape, and copies them only
    where they are not contiguous float32. What a method keeps (residuals, momentum, accumulated gradients) belongs to a
    tensor, named by any hashable key; give each parameter its own. Threads may share a codec: calls for one tensor wait
    for each other, since they change what is kept for it; those for different tensors do not.

    >>> import numpy as np
    >>> codec = Codec("topk:ratio=0.25,ef=on")
    >>> gradient = np.array([0.5, -3.0, 1.0, 2.0, 0.1, -0.2, 0.3, 0.4], "f4")
    >>> payload = codec.encode(gradient)
    >>> codec.decode(payload, gradient.shape).tolist()
    [0.0, -3.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    >>> payload = codec.encode(gradient)      # error feedback: what was not sent is still there
    >>> codec.decode(payload, gradient.shape).tolist()
    [0.0, -3.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, spec: str, *, rank: int = 0, ranks: int = 1, seed: int = 1, threads: int = 1) -> None:
        if not isinstance(spec, str):
            raise UsageError(f"the codec is {spec!r}; valid is a text such as 'topk:ratio=0.01'")
        rank, ranks, seed, threads = (_whole("rank", rank), _whole("ranks", ranks, 1), _whole("seed", seed, 0, 2 ** 64),
                                      _whole("threads", threads, 1))
        if rank >= ranks:
            raise UsageError(f"rank is {rank} of {ranks}; valid is 0 to ranks - 1")
        parsed = _core.parse_codec(spec)
        self.name: str = parsed["name"]
        #: The codec with all of its parameters, as bench's column has them.
        self.spec: str = f"{self.name}:{parsed['params']}" if parsed["params"] else self.name
        self.error_feedback: bool = parsed["error_feedback"]
        self._rank, self._ranks, self._seed, self._threads = rank, ranks, seed, threads
        self._tensors: dict = {}
        self._lock = threading.Lock()  # of `_tensors`

    def __repr__(self) -> str:
        return f"gradtool.Codec({self.spec!r})"

    def encode(self, values: Any, *, tensor: Any = 0, step: Optional[int] = None, weight: Any = None,
               second_moment: Any = None, iteration: Optional[int] = None, learning_rate_ratio: float = 1.0,
               kind: Optional[str] = None, depth: float = 0.0) -> Any:
        """The payload of `values`: bytes (uint8, one dimension) where the values are, NumPy's or PyTorch's.

        Parameters
        ----------
        values:
            A gradient of any shape. Its shape matters to codecs with `by_layout` alone.
        tensor:
            Key of the tensor whose memory this is. Integers also key the random draws, as the number of the tensor in
            the file does in bench; other keys are numbered in the order in which they appear.
        step:
            Number of the step for random draws; counted for each tensor when it is left out.
        weight, second_moment:
            For codecs that say so (`needs_weight`, `needs_second_moment`), as large as the values.
        iteration, learning_rate_ratio:
            Training iteration, and learning rate now by learning rate at the beginning, for codecs with schedules.
        kind, depth:
            For codecs with `by_layout`: the tensor's kind as in the gradient file (guessed from the shape when left
            out), and which share of the model's elements comes before it in forward order. They count at the first
            encode of a tensor.
        """
        values = _array(values, "the gradient")
        kept = self._kept(tensor, values, tuple(values.shape), kind, depth)
        flat = _flat_floats(values, "the gradient")
        payload = _empty_like(flat, kept.native.payload_bytes, "uint8")
        sides = [None if side is None else _flat_floats(_array(side, name), name)
                 for side, name in ((weight, "weight"), (second_moment, "second_moment"))]
        for side, name in zip(sides, ("weight", "second_moment")):
            if side is not None and _device(side) != kept.device:
                raise UsageError(f"{name} is on {_device(side)} and the gradient on {kept.device}; valid is the same device")
        step = None if step is None else _whole("step", step, 0, 2 ** 32)
        iteration = None if iteration is None else _whole("iteration", iteration, 0, 2 ** 63)
        if not (isinstance(learning_rate_ratio, numbers.Real) and 0 <= learning_rate_ratio < math.inf):
            raise UsageError(f"learning_rate_ratio is {learning_rate_ratio!r}; valid is a number from 0 on")
        with kept.lock:
            step = kept.steps if step is None else step
            kept.steps = step + 1
            size = kept.native.encode(flat, payload, *sides, seed=self._seed, step=step, rank=self._rank, tensor=kept.number,
                                      iteration=step if iteration is None else iteration,
                                      learning_rate_ratio=learning_rate_ratio, stream=_stream(flat))
        return payload[:size]

    def decode(self, payload: Any, shape: Any, *, tensor: Any = 0) -> Any:
        """The values that a payload stands for: float32 of that shape, where the payload is.

        A damaged payload raises `DataError` on the host; on a GPU its values are undefined, and nothing is read or
        written out of bounds.
        """
        payload, shape = _bytes(payload), _shape(shape)
        out = _empty_like(payload, int(np.prod(shape, dtype=np.int64)), "float32")
        kept = self._kept(tensor, out, shape)
        with kept.lock:
            kept.native.decode(payload, out, stream=_stream(out))
        return out.reshape(shape)

    def decode_add(self, payload: Any, out: Any, *, weight: float = 1.0, tensor: Any = 0, shape: Any = None) -> None:
        """out += weight * decoded values, in place: summing, averaging and error feedback are this one call.

        `out` is contiguous float32. This is the operation that `gradtool bench` times as decoding.
        """
        contiguous = out.is_contiguous() if _is_torch(out) else isinstance(out, np.ndarray) and out.flags.c_contiguous and out.flags.writeable
        if not contiguous or str(out.dtype) not in ("float32", "torch.float32"):
            raise UsageError("the result of decode_add is not a contiguous float32 array that may be written to")
        if not isinstance(weight, numbers.Real):
            raise UsageError(f"weight is {weight!r}; valid is a number")
        payload = _bytes(payload)
        if _device(payload) != _device(out):
            raise UsageError(f"the payload is on {_device(payload)} and the result on {_device(out)}; valid is the same device")
        kept = self._kept(tensor, out, _shape(out.shape if shape is None else shape))
        with kept.lock:
            kept.native.decode_add(payload, weight, out.reshape(-1), stream=_stream(out))

    def reset(self) -> None:
        """Forgets residuals, momenta and step numbers of all tensors."""
        with self._lock:
            self._tensors.clear()

    def state_dict(self) -> dict:
        """Returns the state of this rank for all tensors (residuals, momenta, step numbers), of plain types. Not for tensors on a GPU."""
        with self._lock:
            tensors = dict(self._tensors)
        saved = {}
        for key, kept in tensors.items():
            with kept.lock:
                saved[key] = {"shape": kept.shape, "kind": kept.kind, "depth": kept.depth, "number": kept.number, "steps": kept.steps,
                              "kept": kept.native.save()}
        return {"format": 1, "codec": self.spec, "rank": self._rank, "ranks": self._ranks, "seed": self._seed, "tensors": saved}

    def load_state_dict(self, state: dict) -> None:
        """Goes on where `state_dict` was called, with the same bytes; what was kept until now is forgotten."""
        if not isinstance(state, dict) or state.get("format") != 1 or "tensors" not in state:
            raise DataError("the state is not one of a codec; valid is what codec.state_dict() returned")
        for what, ours in (("codec", self.spec), ("rank", self._rank), ("ranks", self._ranks), ("seed", self._seed)):
            if state.get(what) != ours:
                raise UsageError(f"{what} is {state.get(what)} in the saved state and {ours} in this codec; valid is the state of a codec "
                                 f"that was made with the same arguments")
        tensors = {}
        try:
            for key, saved in state["tensors"].items():
                kept = tensors[key] = _Tensor(self, tuple(saved["shape"]), "cpu", operator.index(saved["number"]), 0, saved["kind"], saved["depth"])
                kept.steps = operator.index(saved["steps"])
                kept.native.restore(saved["kept"])
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError(f"the state of the codec is damaged ({error}); valid is what codec.state_dict() returned") from error
        with self._lock:
            self._tensors = tensors

    def __getstate__(self) -> dict:
        raise UsageError("a codec cannot be saved itself; save codec.state_dict()")

    def _kept(self, key: Any, values: Any, shape: tuple, kind: Optional[str] = None, depth: float = 0.0) -> "_Tensor":
        device = _device(values)
        with self._lock:
            kept = self._tensors.get(key)
            if kept is None:
                number = key if isinstance(key, int) and 0 <= key < 2**24 else len(self._tensors)
                kept = self._tensors[key] = _Tensor(self, shape, device, number, _stream(values), kind, depth)
        if (kept.shape, kept.device) != (shape, device):
            raise UsageError(f"tensor {key!r} was of shape {kept.shape} on {kept.device} and is now {shape} on {device}; "
                             f"give each tensor a key of its own (tensor=...)")
        return kept


class _Tensor:
    """The state of one tensor."""

    def __init__(self, codec: Codec, shape: tuple, device: str, number: int, stream: int, kind: Optional[str],
                 depth: float) -> None:
        if 0 in shape:
            raise UsageError(f"a tensor of shape {shape} has no elements")
        if kind is not None and kind not in _KINDS:
            raise UsageError(f"kind is {kind!r}; valid is {', '.join(_KINDS)}")
        if not (isinstance(depth, numbers.Real) and 0 <= depth <= 1):
            raise UsageError(f"depth is {depth!r}; valid is 0 to 1")
        make = _core.HostCodec
        if device != "cpu":
            if not device.startswith("cuda"):
                raise UnavailableError(f"the tensor is on {device}; valid are cpu and cuda")
            if not _core.has_cuda:
                raise UnavailableError(f"this build of gradtool has no CUDA, and the tensor is on {device}; "
                                       f"build the package where nvcc is, or use tensor.cpu()")
            make = _core.CudaCodec
        guessed, layout = _kind_of(shape)
        self.shape, self.device, self.number, self.steps, self.kind, self.depth = shape, device, number, 0, kind, depth
        self.lock = threading.Lock()  # of `native`, whose memory every call works in, and of `steps`
        self.native = make(codec.spec, [(str(number), list(shape), kind or guessed, layout, depth)], codec._ranks,
                           codec._threads, stream)


def _bytes(payload: Any) -> Any:
    """A payload as uint8 of one dimension, where it is."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        payload = np.frombuffer(payload, np.uint8)
    if str(getattr(payload, "dtype", "")) not in ("uint8", "torch.uint8") or payload.ndim != 1:
        raise UsageError("the payload is no array of bytes; valid is uint8 of one dimension, as encode returns it")
    return payload.contiguous() if _is_torch(payload) else np.ascontiguousarray(payload)


def _shape(shape: Any) -> tuple:
    if not isinstance(shape, numbers.Integral) and not hasattr(shape, "__iter__"):
        raise UsageError(f"the shape is {shape!r}; valid is a whole number or a tuple of such numbers")
    extents = (shape,) if isinstance(shape, numbers.Integral) else tuple(shape)
    return tuple(_whole("an extent of the shape", extent) for extent in extents)


def _empty_like(array: Any, count: int, dtype: str) -> Any:
    """An uninitialised array of one dimension, of the framework and on the device of `array`."""
    if _is_torch(array):
        torch = sys.modules["torch"]
        return torch.empty(count, dtype=getattr(torch, dtype), device=array.device)
    return np.empty(count, dtype)

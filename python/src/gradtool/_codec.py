"""Codecs of gradtool on arrays of NumPy and tensors of PyTorch."""

from __future__ import annotations

import sys
import threading
from typing import Any, Optional

import numpy as np

from . import _core
from ._errors import UsageError


def codecs() -> list[dict]:
    """All codecs of this build, as `gradtool list codecs --json -` has them.

    >>> [codec["name"] for codec in codecs()][:3]
    ['adacomp', 'atomo', 'bf16']
    """
    return _core.codecs()


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _flat_floats(array: Any, what: str) -> Any:
    """The array as contiguous float32 of one dimension; a copy only where it is not that already."""
    if _is_torch(array):
        torch = sys.modules["torch"]
        if array.is_complex() or array.dtype == torch.bool:
            raise UsageError(f"{what} has the type {array.dtype}; valid are real numbers")
        return array.detach().to(torch.float32).contiguous().view(-1)
    array = np.asarray(array)
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{what} has the type {array.dtype}; valid are real numbers")
    return np.ascontiguousarray(array, dtype=np.float32).reshape(-1)


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
        feedback, which many codecs have on by default. With `ef=ef21` payloads decode to differences: add them to what
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
        if not 0 <= rank < ranks:
            raise UsageError(f"rank is {rank} of {ranks}; valid is 0 to ranks - 1")
        if threads < 1:
            raise UsageError(f"threads is {threads}; valid is 1 or more")
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
        kept = self._kept(tensor, values, kind=kind, depth=depth)
        flat = _flat_floats(values, "the gradient")
        payload = _empty_like(flat, kept.native.payload_bytes, "uint8")
        sides = [None if side is None else _flat_floats(side, name)
                 for side, name in ((weight, "weight"), (second_moment, "second_moment"))]
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
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = int(np.prod(shape, dtype=np.int64))
        out = _empty_like(payload, count, "float32")
        kept = self._kept(tensor, out, shape)
        with kept.lock:
            kept.native.decode(_bytes(payload), out, stream=_stream(out))
        return out.reshape(shape)

    def decode_add(self, payload: Any, out: Any, *, weight: float = 1.0, tensor: Any = 0, shape: Any = None) -> None:
        """out += weight * decoded values, in place: summing, averaging and error feedback are this one call.

        `out` is contiguous float32. This is the operation that `gradtool bench` times as decoding.
        """
        contiguous = out.is_contiguous() if _is_torch(out) else isinstance(out, np.ndarray) and out.flags.c_contiguous
        if not contiguous or "float32" not in str(out.dtype):
            raise UsageError("the result of decode_add is not a contiguous float32 array")
        kept = self._kept(tensor, out, tuple(out.shape) if shape is None else shape)
        with kept.lock:
            kept.native.decode_add(_bytes(payload), weight, out.reshape(-1), stream=_stream(out))

    def reset(self) -> None:
        """Forgets residuals, momenta and step numbers of all tensors."""
        with self._lock:
            self._tensors.clear()

    def _kept(self, key: Any, values: Any, shape: Optional[tuple] = None, kind: Optional[str] = None,
              depth: float = 0.0) -> "_Tensor":
        shape = tuple(np.shape(values)) if shape is None else shape
        device = str(values.device) if _is_torch(values) else "cpu"
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
    """What is kept for one tensor."""

    def __init__(self, codec: Codec, shape: tuple, device: str, number: int, stream: int, kind: Optional[str],
                 depth: float) -> None:
        if 0 in shape:
            raise UsageError(f"a tensor of shape {shape} has no elements")
        make = _core.HostCodec
        if device != "cpu":
            from . import _errors
            if not _core.has_cuda:
                raise _errors.UnavailableError(f"this build of gradtool has no CUDA, and the tensor is on {device}; "
                                               f"build the package where nvcc is, or use tensor.cpu()")
            make = _core.CudaCodec
        guessed, layout = _kind_of(shape)
        self.shape, self.device, self.number, self.steps = shape, device, number, 0
        self.lock = threading.Lock()  # of `native`, whose memory every call works in, and of `steps`
        self.native = make(codec.spec, [(str(number), list(shape), kind or guessed, layout, depth)], codec._ranks,
                           codec._threads, stream)


def _bytes(payload: Any) -> Any:
    """A payload as contiguous uint8, where it is."""
    return payload if _is_torch(payload) else np.ascontiguousarray(payload, np.uint8)


def _empty_like(array: Any, count: int, dtype: str) -> Any:
    """An uninitialised array of one dimension, of the framework and on the device of `array`."""
    if _is_torch(array):
        torch = sys.modules["torch"]
        return torch.empty(count, dtype=getattr(torch, dtype), device=array.device)
    return np.empty(count, dtype)

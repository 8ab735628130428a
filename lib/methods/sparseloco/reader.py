"""The largest elements of chunks: positions, 2-bit codes and a codebook each (README.md).

follow() repeats the steps of the paper in NumPy beside the messages of every rank.
"""
import numpy as np

from payloads import chunks
from payloads.common import largest, packed


def decode(parameters, n, payload):
    return decode_layout(parameters, chunks.flat(n), payload)


def decode_layout(parameters, tensors, payload):
    return np.sum(by_tensor(parameters, tensors, payload), axis=0, initial=np.float32(0), dtype=np.float32)


def by_tensor(parameters, tensors, payload):
    """Returns the values that each tensor decodes to, 0 elsewhere."""
    out = np.zeros((len(tensors), sum(tensor["elements"] for tensor in tensors)), np.float32)
    at = 0
    for tensor, indices, kept in chunks.cut(tensors, int(parameters["k"])):
        book = (np.frombuffer(payload, "<u2", 4, at).astype(np.uint32) << 16).view(np.float32)
        positions = packed(payload, at + 8, kept, 12)
        at += 8 + 4 * ((12 * kept + 31) // 32)
        assert np.all(np.diff(positions.astype(int)) > 0) and positions[-1] < indices.size
        out[tensor, indices.reshape(-1)[positions]] = book[packed(payload, at, kept, 2)]
        at += 4 * ((2 * kept + 31) // 32)
    assert at == len(payload)
    return out


def check_record(parameters, held, indices, kept, payload, at):
    """The record at byte `at` is what the paper's steps make of this chunk; gives its end, positions and values."""
    x = held[indices.reshape(-1)]
    expected = largest(x, kept)
    sent = x[expected].astype(np.float64)
    if parameters["bins"] == "magnitude" or kept < 16:
        codes = (sent > -np.mean(np.abs(sent))).astype(int) + (sent > 0) + (sent > np.mean(np.abs(sent)))
    else:
        width = 1.5 * np.std(sent, ddof=1)
        # The number of the bin that x / width + 2 rounds to, from 0 to 3.
        codes = np.clip(np.ceil((sent - np.mean(sent)) / width + 1.5), 0, 3).astype(int) if width > 0 else None
    book = (np.frombuffer(payload, "<u2", 4, at).astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(packed(payload, at + 8, kept, 12), expected)
    at += 8 + 4 * ((12 * kept + 31) // 32)
    written = packed(payload, at, kept, 2)
    if codes is not None:
        assert np.array_equal(written, codes)
    for code in range(4):
        mean = np.mean(sent[written == code]) if np.any(written == code) else 0.0
        assert abs(book[code] - mean) <= 2.0 ** -8 * abs(mean)
    return at + 4 * ((2 * kept + 31) // 32), expected, book[written]


def follow(case):
    beta = np.float32(case.parameters["beta"])
    held = np.zeros((case.ranks, case.n), np.float32)
    for step in case.steps:
        parts = []
        for rank, (gradient, messages) in enumerate(zip(step["inputs"], step["messages"])):
            (call, payload), = messages
            assert call == "all_gather_v"
            held[rank] = beta * held[rank] + gradient
            at = 0
            for _, indices, kept in chunks.cut(case.tensors, int(case.parameters["k"])):
                at, positions, values = check_record(case.parameters, held[rank], indices, kept, payload, at)
                held[rank][indices.reshape(-1)[positions]] -= values
            parts.append(by_tensor(case.parameters, case.tensors, payload))
        if case.parameters["clip"] == "median":
            norms = np.sqrt(np.sum(np.square(parts, dtype=np.float64), axis=2))  # [rank, tensor]
            limit = np.sort(norms, axis=0)[(case.ranks - 1) // 2]
            parts = parts * np.minimum(1, limit / np.maximum(norms, 1e-300))[:, :, None]
        yield np.mean(np.sum(parts, axis=1), axis=0)

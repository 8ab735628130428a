"""The payload of adacomp: ternary values in bins (README.md)."""
import numpy as np


def decode(parameters, n, payload):
    return decode_tensors([(n, int(parameters["other"]))] if n else [], payload)


def decode_layout(parameters, tensors, payload):
    bins = {True: int(parameters["conv"]), False: int(parameters["other"])}
    return decode_tensors([(tensor["elements"], bins[tensor["kind"] == "conv"]) for tensor in tensors], payload)


def decode_tensors(tensors, payload):
    """`tensors` has the number of elements and the bin size of each tensor."""
    assert int(np.frombuffer(payload, dtype="<u8", count=1)[0]) == len(payload)
    scales = np.frombuffer(payload, dtype="<f4", offset=8, count=len(tensors))
    offset, parts = 8 + 4 * len(tensors), [np.zeros(0, dtype=np.float32)]
    for (elements, size), scale in zip(tensors, scales):
        kind = np.dtype("u1" if size <= 64 else "<u2")
        bins = -(-elements // size)
        counts = np.frombuffer(payload, dtype=kind, offset=offset, count=bins).astype(np.int64)
        first = offset + kind.itemsize * bins
        entries = np.frombuffer(payload, dtype=kind, offset=first, count=counts.sum()).astype(int)
        where = np.repeat(np.arange(bins) * size, counts) + (entries >> 2)
        assert np.all(np.diff(where) > 0) and np.all((entries >> 2) < size) and np.all(np.isin(entries & 3, [1, 2]))
        out = np.zeros(elements, dtype=np.float32)
        out[where] = np.where(entries & 2, -scale, scale)
        parts.append(out)
        offset += (kind.itemsize * (bins + len(entries)) + 3) // 4 * 4
    assert offset == len(payload)
    return np.concatenate(parts)

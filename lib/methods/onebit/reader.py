"""Two means a column and a bit an element; decode() is for a vector, which is one column."""
import numpy as np


def decode(parameters, n, payload):
    return decode_tensors(parameters, [[n]], payload)


def decode_tensors(parameters, shapes, payload):
    sizes = [int(np.prod(shape)) for shape in shapes]
    columns = [size // shape[0] if len(shape) > 1 and parameters["means"] == "column" else min(size, 1)
               for size, shape in zip(sizes, shapes)]
    means = np.frombuffer(payload, dtype="<f4", count=2 * sum(columns)).reshape(-1, 2)
    at, column, parts = 8 * sum(columns), 0, []
    for size, width in zip(sizes, columns):
        words = (size + 31) // 32 * 4
        bits = np.unpackbits(np.frombuffer(payload, np.uint8, offset=at, count=words), bitorder="little")[:size]
        part = means[column:column + width]
        parts.append(part[np.arange(size) % max(width, 1), bits] if size else np.zeros(0, np.float32))
        at, column = at + words, column + width
    assert at == len(payload)
    return np.concatenate(parts).astype(np.float32)

"""A float32 scale per block, then a byte per element; or rows, each a float32 and its bytes."""
import numpy as np

from payloads.small_float import LARGEST, nearest, values


def rows(parameters, n, payload):
    """For each row: its first element, its factor and its codes."""
    row, at = int(parameters["row"]), 0
    for first in range(0, n, row):
        count = min(row, n - first)
        codes = np.frombuffer(payload, dtype=np.uint8, offset=at + 4, count=count)
        padded = (count + 3) // 4 * 4
        assert not any(payload[at + 4 + count:at + 4 + padded]), "the padding is zero"
        yield first, np.frombuffer(payload, dtype="<f4", offset=at, count=1)[0], codes
        at += 4 + padded
    assert at == len(payload)


def decode(parameters, n, payload):
    if parameters["scale"] == "row":
        out = np.zeros(n, dtype=np.float32)
        for first, factor, codes in rows(parameters, n, payload):
            out[first:first + len(codes)] = values(parameters["format"], codes).astype(np.float32) / factor
        return out
    block = max(n, 1) if parameters["scale"] == "unit" else int(parameters["block"])
    blocks = (n + block - 1) // block
    assert len(payload) == 4 * blocks + (n + 3) // 4 * 4
    scales = np.frombuffer(payload, dtype="<f4", count=blocks).astype(np.float64)
    codes = np.frombuffer(payload, dtype=np.uint8, offset=4 * blocks, count=n)
    return (values(parameters["format"], codes) * np.repeat(scales, block)[:n]).astype(np.float32)


def check(parameters, x, payload):
    """A row is what torchft's kernels make of it: a factor of top / largest, or 1 where that is infinite, and x times it, rounded."""
    if parameters["scale"] != "row" or parameters["rounding"] != "nearest":
        return
    for first, factor, codes in rows(parameters, len(x), payload):
        row = x[first:first + len(codes)]
        with np.errstate(divide="ignore", over="ignore"):
            wanted = np.float32(LARGEST[parameters["format"]]) / np.abs(row).max()
        assert factor == (wanted if np.isfinite(wanted) else 1)
        assert np.array_equal(codes, nearest(parameters["format"], row * factor))

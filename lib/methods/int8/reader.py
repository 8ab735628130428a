"""Integers of a scale per block: float32, or binary16 with a sign."""
import numpy as np

from payloads.common import packed


def parts(parameters, n, payload):
    """Scales as float64, codes as signed integers, and elements of a block."""
    bits, half = int(parameters["bits"]), parameters["scale"] == "f16"
    block = 32 if half else int(parameters["block"])
    blocks = (n + block - 1) // block
    offset = 4 * ((blocks + 1) // 2) if half else 4 * blocks
    assert len(payload) == offset + 4 * ((n * bits + 31) // 32)
    scales = np.frombuffer(payload, dtype="<f2" if half else "<f4", count=blocks).astype(np.float64)
    if half:
        assert not any(payload[2 * blocks:offset]), "the padding is zero"
    codes = packed(payload, offset, n, bits).astype(np.int64)
    codes = np.where(codes >> (bits - 1), codes - (1 << bits), codes)
    assert half or not np.any(codes == -(1 << (bits - 1)))
    return scales, codes, block


def decode(parameters, n, payload):
    scales, codes, block = parts(parameters, n, payload)
    return (codes * np.repeat(scales, block)[:n]).astype(np.float32)


def check(parameters, x, payload):
    """Scales follow from the largest element of a block, and codes are the nearest multiples, but for float32's rounding."""
    scales, codes, block = parts(parameters, len(x), payload)
    if len(x) == 0:
        return
    bits, half = int(parameters["bits"]), parameters["scale"] == "f16"
    blocks = np.pad(x.astype(np.float64), (0, -len(x) % block)).reshape(-1, block)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)[:, 0]
    if half:
        wanted = np.clip(extreme / -2 ** (bits - 1), -65504, 65504).astype(np.float16).astype(np.float64)
        tie = (blocks.max(axis=1) == -blocks.min(axis=1)) & (np.abs(scales) == np.abs(wanted))
        assert np.all((scales == wanted) | tie)
        low, high = -2 ** (bits - 1), 2 ** (bits - 1) - 1
    else:
        most = 2 ** (bits - 1) - 1
        assert np.all(np.abs(scales * most - np.abs(extreme)) <= 1e-6 * np.abs(extreme) + 2.0 ** -100)
        low, high = -most, most
    step = np.repeat(scales, block)[:len(x)]
    y = np.divide(x, step, out=np.zeros(len(x)), where=step != 0)
    away = 0.5 if parameters["rounding"] == "nearest" else 1.0
    assert np.all(np.abs(codes - np.clip(y, low, high)) <= away + 1e-4)

"""Integers of a scale per block."""
import numpy as np

from payloads.common import packed


def decode(parameters, n, payload):
    block = int(parameters["block"])
    blocks = (n + block - 1) // block
    scales = np.frombuffer(payload, dtype="<f4", count=blocks).astype(np.float64)
    codes = packed(payload, 4 * blocks, n, 8).astype(np.uint8).view(np.int8)
    assert len(payload) == 4 * blocks + 4 * ((n + 3) // 4) and not np.any(codes == -128)
    return (codes * np.repeat(scales, block)[:n]).astype(np.float32)

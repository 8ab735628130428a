"""A float32 scale per block, then a byte per element."""
import numpy as np

from payloads.small_float import values


def decode(parameters, n, payload):
    block = int(parameters["block"])
    blocks = (n + block - 1) // block
    assert len(payload) == 4 * blocks + (n + 3) // 4 * 4
    scales = np.frombuffer(payload, dtype="<f4", count=blocks).astype(np.float64)
    codes = np.frombuffer(payload, dtype=np.uint8, offset=4 * blocks, count=n)
    return (values(parameters["format"], codes) * np.repeat(scales, block)[:n]).astype(np.float32)

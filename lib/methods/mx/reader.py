"""A power-of-two scale per 32 elements, then packed codes."""
import numpy as np

from payloads.common import packed
from payloads.small_float import FORMATS, values


def decode(parameters, n, payload):
    name = parameters["format"]
    bits = 8 if name == "int8" else 1 + sum(FORMATS[name][:2])
    blocks = (n + 31) // 32
    offset = (blocks + 3) // 4 * 4
    assert len(payload) == offset + 4 * ((n * bits + 31) // 32)
    scales = 2.0 ** (np.frombuffer(payload, dtype=np.uint8, count=blocks).astype(np.float64) - 127)
    codes = packed(payload, offset, n, bits)
    elements = codes.astype(np.uint8).view(np.int8) / 64.0 if name == "int8" else values(name, codes)
    return (elements * np.repeat(scales, 32)[:n]).astype(np.float32)

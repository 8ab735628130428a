"""The payload of strom: +tau or -tau where an element was sent (README.md)."""
import struct

import numpy as np

from payloads.common import packed, positions


def decode(parameters, n, payload):
    tau = np.float32(parameters["tau"])
    out = np.zeros(n, dtype=np.float32)
    if parameters["form"] == "dense":
        assert len(payload) == 4 * ((n + 15) // 16)
        return np.array([0, tau, -tau, np.nan], dtype=np.float32)[packed(payload, 0, n, 2)]
    size, count, code = struct.unpack_from("<QII", payload)
    assert size == len(payload)
    finite, code = code < 256, code & 255
    if code == 3:
        words = np.frombuffer(payload, dtype="<u4", offset=16)
        where, negative = words & np.uint32(0x7FFFFFFF), words >> 31
        assert len(words) == count and np.all(np.diff(where.astype(np.int64)) > 0)
    else:
        negative = packed(payload, 16, count, 1)
        where = positions(payload[16 + 4 * ((count + 31) // 32):], code, count, n)
    out[where] = np.where(negative, -tau, tau) if finite else np.float32(np.nan)
    return out

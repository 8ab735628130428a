"""Accumulated velocities above a threshold, and vectors that go whole."""
import struct

import numpy as np

from payloads.common import sparse


def decode(parameters, n, payload):
    return sparse(payload, n)


def decode_layout(parameters, tensors, payload):
    n = sum(tensor["elements"] for tensor in tensors)
    whole = np.zeros(n, dtype=bool)
    if parameters["vectors"] == "dense" and len(tensors) > 1:
        for tensor in tensors:
            if len(tensor["shape"]) < 2:
                whole[tensor["first"]:tensor["first"] + tensor["elements"]] = True
    if not whole.any():
        return sparse(payload, n)
    size, = struct.unpack_from("<Q", payload)
    assert size == len(payload)
    values = np.frombuffer(payload, dtype="<f4", offset=8, count=int(whole.sum()))
    out = sparse(payload[8 + 4 * len(values):], n)
    assert not out[whole].any()
    out[whole] = values
    return out

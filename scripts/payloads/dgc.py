"""Accumulated velocities above a threshold; decode() is for a unit without dense vectors."""
import struct

import numpy as np

from payloads.common import sparse


def decode(parameters, n, payload):
    return sparse(payload, n)


def decode_with_vectors(n, dense, payload):
    """dense: a mask of the elements that go whole."""
    if not dense.any():
        return sparse(payload, n)
    size, = struct.unpack_from("<Q", payload)
    assert size == len(payload)
    values = np.frombuffer(payload, dtype="<f4", offset=8, count=int(dense.sum()))
    out = sparse(payload[8 + 4 * len(values):], n)
    out[dense] += values
    return out

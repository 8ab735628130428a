"""Singular triplets of matrices; here for one tensor of one dimension, which is a matrix only with vectors=square."""
import math
import struct

import numpy as np


def decode(parameters, n, payload):
    if n == 0:
        return np.zeros(0, dtype=np.float32)
    s = int(parameters["s"])
    rows = math.isqrt(n)
    columns = -(-n // rows)
    (size,) = struct.unpack_from("<Q", payload)
    assert size == len(payload)
    if parameters["vectors"] == "dense" or min(rows, columns) < 2 or s * (rows + columns + 1) >= n:
        return np.frombuffer(payload, dtype="<f4", offset=8).astype(np.float32)
    (count,) = struct.unpack_from("<I", payload, 8)
    triplets = np.frombuffer(payload, dtype="<f4", offset=12).reshape(count, 1 + rows + columns).astype(np.float64)
    left, right = triplets[:, 1: 1 + rows], triplets[:, 1 + rows:]
    for side in (left, right):  # the parts of a singular value decomposition
        assert np.allclose(side @ side.T, np.eye(count), atol=1e-5)
    return ((left * triplets[:, :1]).T @ right).ravel()[:n].astype(np.float32)

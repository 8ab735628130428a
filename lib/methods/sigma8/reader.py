"""A codebook of 256 values, and a byte an element that says which of them it is."""
import numpy as np


def decode(parameters, n, payload):
    if n == 0:
        assert len(payload) == 0
        return np.zeros(0, dtype=np.float32)
    assert len(payload) == 1024 + (n + 3) // 4 * 4
    codebook = np.frombuffer(payload, dtype="<f4", count=256)
    codes = np.frombuffer(payload, dtype=np.uint8, offset=1024, count=n)
    assert not any(payload[1024 + n:]), "the padding is zero"
    return codebook[codes]

"""A byte of exponent for every element, then a bit of sign."""
import numpy as np


def decode(parameters, n, payload):
    signs_at = (n + 3) // 4 * 4
    assert len(payload) == signs_at + (n + 31) // 32 * 4
    exponents = np.frombuffer(payload, dtype=np.uint8, count=n).astype(np.float64)
    signs = np.unpackbits(np.frombuffer(payload, dtype=np.uint8, offset=signs_at), bitorder="little")[:n]
    with np.errstate(over="ignore"):
        magnitude = np.where(exponents == 0, 0.0, np.where(exponents == 255, np.inf, 2.0 ** (exponents - 127)))
    return np.where(signs, -magnitude, magnitude).astype(np.float32)

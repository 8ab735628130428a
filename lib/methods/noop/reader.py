"""Nothing: decodes to zeros."""
import numpy as np


def decode(parameters, n, payload):
    assert payload == b""
    return np.zeros(n, dtype=np.float32)

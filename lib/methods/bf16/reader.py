"""bfloat16: the upper half of a float32."""
import numpy as np


def decode(parameters, n, payload):
    assert len(payload) == 2 * n
    return (np.frombuffer(payload, dtype="<u2").astype(np.uint32) << 16).view(np.float32)

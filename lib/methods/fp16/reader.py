"""binary16 of the scaled gradient."""
import numpy as np


def decode(parameters, n, payload):
    scale = 2.0 ** -int(parameters["scale_log2"])
    return (np.frombuffer(payload, dtype="<f2").astype(np.float64) * scale).astype(np.float32)

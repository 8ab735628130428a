"""Levels of a norm per bucket."""
import numpy as np

from payloads.common import packed


def decode(parameters, n, payload):
    bits, bucket = int(parameters["bits"]), int(parameters["bucket"])
    buckets = (n + bucket - 1) // bucket
    norms = np.frombuffer(payload, dtype="<f4", count=buckets).astype(np.float64)
    codes = packed(payload, 4 * buckets, n, bits)
    levels = (1 << (bits - 1)) - 1
    magnitude = (codes & levels).astype(np.float64) / levels * np.repeat(norms, bucket)[:n]
    return np.where(codes >> (bits - 1), -magnitude, magnitude).astype(np.float32)

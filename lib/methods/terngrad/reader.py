"""-1, 0 or 1 times a scale per tensor; decode() is for a unit of one tensor."""
import numpy as np

from payloads.common import packed


def decode(parameters, n, payload):
    return decode_tensors(parameters, [n], payload)


def decode_tensors(parameters, elements, payload):
    """elements: how many each tensor has."""
    scales = np.frombuffer(payload, dtype="<f4", count=len(elements)).astype(np.float64)
    at = 4 * len(elements)
    parts = []
    for count, scale in zip(elements, scales):
        if parameters["pack"] == "2bit":
            codes = packed(payload, at, count, 2).astype(np.int64)
            at += (count + 15) // 16 * 4
        else:
            data = np.frombuffer(payload, dtype=np.uint8, offset=at, count=(count + 4) // 5).astype(np.int64)
            assert np.all(data <= 242)
            codes = (data[:, None] // 3 ** np.arange(5)).reshape(-1)[:count] % 3
            at += (count + 19) // 20 * 4
        assert np.all(codes <= 2)
        parts.append(np.array([0.0, 1.0, -1.0])[codes] * scale)
    assert at == len(payload)
    return np.concatenate(parts).astype(np.float32)

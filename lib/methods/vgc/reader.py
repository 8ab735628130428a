"""The payload of vgc: words of sign, power of two and index, group by group (README.md)."""
import numpy as np


def decode(parameters, n, payload):
    if n == 0:
        return np.zeros(0, dtype=np.float32)
    return decode_groups(parameters, [n], payload)


def decode_layout(parameters, tensors, payload):
    return decode_groups(parameters, [tensor["elements"] for tensor in tensors], payload)


def decode_groups(parameters, elements, payload):
    """`elements` has the number of elements of each group: of a tensor, or of a section of one."""
    tau = 0.0 if parameters["tau"] == "off" else float(np.float32(parameters["tau"]))
    groups = [sum(elements)] if tau > 0 else elements
    size = int(np.frombuffer(payload, dtype="<u8", count=1)[0])
    assert size == len(payload)
    counts = np.frombuffer(payload, dtype="<u4", offset=8, count=len(groups))
    exponents = np.frombuffer(payload, dtype=np.uint8, offset=8 + 4 * len(groups), count=len(groups))
    offset = 8 + 4 * len(groups) + (len(groups) + 3) // 4 * 4
    parts = []
    for group, count, exponent in zip(groups, counts, exponents):
        words = np.frombuffer(payload, dtype="<u4", offset=offset, count=count)
        offset += 4 * int(count)
        out = np.zeros(group)
        index = words & np.uint32(0x7FFFFFFF if tau > 0 else 0x0FFFFFFF)
        assert count == 0 or (np.all(np.diff(index.astype(np.int64)) > 0) and index[-1] < group)
        magnitude = tau if tau > 0 else 2.0 ** (float(exponent) - 127.0 - (words >> 28 & 7).astype(np.float64))
        out[index] = np.nan if exponent == 255 else np.where(words >> 31, -1.0, 1.0) * magnitude
        parts.append(out)
    assert offset == size
    return np.concatenate(parts).astype(np.float32)

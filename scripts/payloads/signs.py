"""Reads the payload that efsignsgd and signsgd share: a mean magnitude per tensor, then a bit per element, tensors at word borders."""
import numpy as np


def words_of(elements):
    return sum((count + 31) // 32 for count in elements)


def expand(elements, means, signs):
    """The values that means (one per tensor) and sign words (bytes) stand for."""
    parts, at = [], 0
    for count, mean in zip(elements, means):
        size = (count + 31) // 32 * 4
        bits = np.unpackbits(np.frombuffer(signs, dtype=np.uint8, offset=at, count=size), bitorder="little")
        assert not np.any(bits[count:])
        parts.append(np.where(bits[:count], -float(mean), float(mean)))
        at += size
    assert at == len(signs)
    return np.concatenate(parts).astype(np.float32)


def decode_tensors(elements, payload, scaled=True):
    means = np.frombuffer(payload, dtype="<f4", count=len(elements)) if scaled else np.ones(len(elements))
    return expand(elements, means, payload[4 * len(elements) if scaled else 0:])


def encode(elements, x):
    """(means, sign words) of a gradient."""
    means, words, at = [], b"", 0
    for count in elements:
        part = x[at:at + count]
        means.append(np.float32(np.abs(part.astype(np.float64)).sum() / max(count, 1)))
        bits = np.zeros((count + 31) // 32 * 32, dtype=np.uint8)
        bits[:count] = part < 0
        words += np.packbits(bits, bitorder="little").tobytes()
        at += count
    return np.array(means, dtype=np.float32), words

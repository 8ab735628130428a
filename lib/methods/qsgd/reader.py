"""Levels of a norm per bucket, of fixed width or as Elias codes of those that are not zero."""
import numpy as np

from payloads.common import Bits, packed


def decode(parameters, n, payload):
    bits, bucket = int(parameters["bits"]), int(parameters["bucket"])
    buckets = (n + bucket - 1) // bucket
    levels = (1 << (bits - 1)) - 1
    if parameters.get("code") == "elias":
        norms = np.frombuffer(payload, dtype="<f4", offset=8, count=buckets).astype(np.float64)
        signed = elias(payload, n, bucket, buckets, levels)
    else:
        norms = np.frombuffer(payload, dtype="<f4", count=buckets).astype(np.float64)
        codes = packed(payload, 4 * buckets, n, bits).astype(np.int64)
        signed = np.where(codes >> (bits - 1), -(codes & levels), codes & levels)
    return (signed / levels * np.repeat(norms, bucket)[:n]).astype(np.float32)


def elias(payload, n, bucket, buckets, levels):
    """The levels with their signs."""
    part = max(1, 16384 // bucket) * bucket
    parts = (n + part - 1) // part
    assert int(np.frombuffer(payload, dtype="<u8", count=1)[0]) == len(payload)
    sizes = np.frombuffer(payload, dtype="<u4", offset=8 + 4 * buckets, count=parts)
    at, signed = 8 + 4 * buckets + 4 * parts, np.zeros(n, dtype=np.int64)
    for index, size in enumerate(sizes):
        length = (int(size) + 31) // 32 * 4
        stream, i = Bits(payload[at:at + length]), index * part - 1
        while stream.at < size:
            i += stream.elias_delta()
            negative = stream.take(1)
            level = stream.elias_delta()
            assert 1 <= level <= levels and i < min(n, (index + 1) * part)
            signed[i] = -level if negative else level
        assert stream.at == size
        at += length
    assert at == len(payload)
    return signed

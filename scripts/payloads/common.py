"""Readers of the parts that many payloads share: packed codes, Elias delta gaps, the sparse header."""
import struct

import numpy as np


def packed(payload, offset, count, bits):
    """`count` codes of `bits` bits from a little-endian stream of 32-bit words."""
    words = np.frombuffer(payload, dtype="<u4", offset=offset, count=(count * bits + 31) // 32)
    stream = np.unpackbits(words.view(np.uint8), bitorder="little")[:count * bits].reshape(count, bits)
    return (stream.astype(np.uint64) << np.arange(bits, dtype=np.uint64)).sum(axis=1).astype(np.uint32)


class Bits:
    """A stream whose bit j is bit j mod 8 of byte j div 8."""

    def __init__(self, data):
        self.bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        self.at = 0

    def take(self, count):
        value = 0
        for j in range(count):
            value |= int(self.bits[self.at + j]) << j
        self.at += count
        return value

    def elias_delta(self):
        zeros = 0
        while self.bits[self.at] == 0:
            zeros += 1
            self.at += 1
        self.at += 1
        length = (1 << zeros) + self.take(zeros) - 1
        return (1 << length) + self.take(length)


def positions(section, code, count, n):
    """The index section of a sparse payload: 0 uint32 list, 1 bitmap, 2 Elias delta gaps."""
    if code == 0:
        assert len(section) == 4 * count
        found = np.frombuffer(section, dtype="<u4")
    elif code == 1:
        assert len(section) == 4 * ((n + 31) // 32)
        found = np.flatnonzero(np.unpackbits(np.frombuffer(section, dtype=np.uint8), bitorder="little"))
    else:
        assert code == 2, f"unknown index code {code}"
        bits, found, next_one = Bits(section), [], 0
        for _ in range(count):
            next_one += bits.elias_delta()
            found.append(next_one - 1)
        assert (bits.at + 31) // 32 * 4 == len(section)
        found = np.array(found, dtype=np.int64)
    assert len(found) == count and (count == 0 or found[-1] < n) and np.all(np.diff(found.astype(np.int64)) > 0)
    return found.astype(np.int64)


def sparse_header(payload):
    """(count, code) of the 16 bytes that sparse payloads begin with."""
    size, count, code = struct.unpack_from("<QII", payload)
    assert size == len(payload)
    return count, code


def sparse(payload, n):
    """A payload of float32 values and their positions, as n values."""
    count, code = sparse_header(payload)
    values = np.frombuffer(payload, dtype="<f4", offset=16, count=count)
    out = np.zeros(n, dtype=np.float32)
    out[positions(payload[16 + 4 * count:], code, count, n)] = values
    return out


SHARED = 0xFFFFFFFF  # the rank in the key of draws that all ranks share


def philox_bits(seed, step, rank, tensor, elements):
    """The 32-bit draws of elements 0 to `elements` - 1 (docs/payload-format.md, random numbers)."""
    quads = np.arange((elements + 3) // 4, dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    c = [quads & mask, (quads >> np.uint64(32)) ^ np.uint64((tensor << 8) & 0xFFFFFFFF),
         np.full_like(quads, step), np.full_like(quads, rank)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]), b & mask,
             (a >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]), a & mask]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1).reshape(-1)[:elements]


def philox(seed, step, rank, tensor, elements):
    """The uniform draws in [0, 1) of elements 0 to `elements` - 1."""
    words = philox_bits(seed, step, rank, tensor, elements)
    return ((words >> np.uint64(8)).astype(np.float32) * np.float32(2.0 ** -24)).astype(np.float32)


def ring_sum(parts):
    """The float32 sum of equally long arrays, one for each rank, as the ring adds: segment s in the order of ranks s+1, s+2, ..., s."""
    p, n = len(parts), len(parts[0])
    out = np.empty(n, np.float32)
    for s in range(p):
        part = slice(n * s // p, n * (s + 1) // p)
        out[part] = parts[(s + 1) % p][part]
        for hop in range(2, p + 1):
            out[part] += parts[(s + hop) % p][part]
    return out


def largest(values, count):
    """Returns the positions of the `count` largest magnitudes, ascending; of equal ones those with the lower index."""
    return np.sort(np.argsort(-np.abs(values), kind="stable")[:count])

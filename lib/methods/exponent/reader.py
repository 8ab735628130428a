"""Chunks: plain, or rANS of the exponents in 32 interleaved states beside signs and mantissas."""
import numpy as np

CHUNK = 65536
LANES = 32
LOWEST = 1 << 16


def padded(count):
    return (count + 3) // 4 * 4


def exponents(count, chunk, frequencies, symbols, words):
    assert frequencies.sum() == 4096 and np.all(frequencies > 0)
    of_slot = np.repeat(np.arange(len(symbols)), frequencies)
    starts = np.cumsum(frequencies) - frequencies
    states = np.frombuffer(chunk, dtype="<u4", count=LANES, offset=32).astype(np.int64)
    out = np.empty(count, dtype=np.uint32)
    at = 0
    for row in range(0, count, LANES):
        lanes = min(LANES, count - row)
        slot = states[:lanes] % 4096
        which = of_slot[slot]
        out[row:row + lanes] = symbols[which]
        states[:lanes] = frequencies[which] * (states[:lanes] // 4096) + slot - starts[which]
        low = np.flatnonzero(states[:lanes] < LOWEST)
        states[low] = states[low] * 65536 + words[at:at + len(low)]
        at += len(low)
    assert np.all(states == LOWEST)
    assert len(words) - at in (0, 1) and not np.any(words[at:])
    return out


def patterns(count, kind, chunk):
    wide = kind % 2 == 1
    if kind < 2:
        assert len(chunk) == (4 * count if wide else padded(2 * count))
        if wide:
            return np.frombuffer(chunk, dtype="<u4")
        return np.frombuffer(chunk, dtype="<u2", count=count).astype(np.uint32) << np.uint32(16)
    symbols = np.flatnonzero(np.unpackbits(np.frombuffer(chunk, dtype=np.uint8, count=32), bitorder="little"))
    frequencies = np.frombuffer(chunk, dtype="<u2", count=len(symbols), offset=160).astype(np.int64)
    at = 160 + padded(2 * len(symbols))
    upper = np.frombuffer(chunk, dtype=np.uint8, count=count, offset=at).astype(np.uint32)
    at += padded(count)
    lower = np.zeros(count, dtype=np.uint32)
    if wide:
        lower = np.frombuffer(chunk, dtype="<u2", count=count, offset=at).astype(np.uint32)
        at += padded(2 * count)
    exponent = exponents(count, chunk, frequencies, symbols, np.frombuffer(chunk, dtype="<u2", offset=at))
    return (upper >> 7) << np.uint32(31) | exponent << np.uint32(23) | (upper & 0x7f) << np.uint32(16) | lower


def decode(parameters, n, payload):
    chunks = (n + CHUNK - 1) // CHUNK
    assert np.frombuffer(payload, dtype="<u8", count=1)[0] == len(payload)
    entries = np.frombuffer(payload, dtype="<u4", count=chunks, offset=8)
    at = 8 + 4 * chunks
    out = [np.zeros(0, dtype=np.uint32)]
    for index, entry in enumerate(map(int, entries)):
        size = entry // 4 * 4
        out.append(patterns(min(CHUNK, n - index * CHUNK), entry % 4, payload[at:at + size]))
        at += size
    assert at == len(payload)
    return np.concatenate(out).view(np.float32)

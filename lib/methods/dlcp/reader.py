"""Packets that crossed a lossy channel, and which of them arrived."""
import struct

import numpy as np


def decode(parameters, n, payload):
    size, packets, transmissions = struct.unpack_from("<QII", payload)
    assert size == len(payload)
    each = int(parameters["packet"])
    words = (transmissions + 31) // 32
    arrived = np.unpackbits(np.frombuffer(payload, np.uint8, 4 * words, 16), bitorder="little")
    out, at, seen, got = np.zeros(n, np.float32), 16 + 4 * words, set(), 0
    for number in range(transmissions):
        magic, _, tensor, packet, length, layer, flags, count = struct.unpack_from("<IIIIHBBI", payload, at)
        assert magic == 0x31504C44 and tensor == 0 and layer == 0 and count == packets
        assert bool(flags & 2) == (number >= packets)
        values = np.frombuffer(payload, "<f4", length // 4, at + 24)
        at += 24 + length
        if not arrived[number]:
            continue
        assert packet not in seen
        seen.add(packet)
        out[packet * each // 4:][:len(values)] = values
        got += length
    assert at == size
    assert got >= (1 - float(parameters["bound"])) * 4 * n
    return out

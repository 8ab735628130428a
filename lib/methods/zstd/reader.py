"""Byte-shuffled blocks, each a zstd frame, by the system's libzstd."""
import ctypes
import struct

import numpy as np

import payloads

BLOCK = 65536


def library():
    try:
        lib = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        raise payloads.Missing(f"libzstd.so.1: {error}") from error
    lib.ZSTD_decompress.restype = ctypes.c_size_t
    lib.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return lib


def decode(parameters, n, payload):
    lib = library()
    blocks = (n + BLOCK - 1) // BLOCK
    (size,) = struct.unpack_from("<Q", payload)
    assert size == len(payload)
    at = 8 + 4 * blocks
    out = []
    for block, bytes_ in enumerate(struct.unpack_from(f"<{blocks}I", payload, 8)):
        count = min(BLOCK, n - block * BLOCK)
        planes = ctypes.create_string_buffer(4 * count)
        assert lib.ZSTD_decompress(planes, 4 * count, payload[at:at + bytes_], bytes_) == 4 * count
        shuffled = np.frombuffer(planes.raw, dtype=np.uint8).reshape(4, count)
        out.append(np.ascontiguousarray(shuffled.T).view("<f4").reshape(-1))
        at += bytes_
    assert (at + 3) // 4 * 4 == size and not any(payload[at:])
    return np.concatenate(out) if out else np.zeros(0, dtype=np.float32)

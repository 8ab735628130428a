"""Chunks of one-dimensional zfp, by the system's libzfp."""
import ctypes
import math
import struct

import numpy as np

import payloads

CHUNK = 8192
FLOAT = 3  # zfp_type_float


def library():
    try:
        lib = ctypes.CDLL("libzfp.so.1")
    except OSError as error:
        raise payloads.Missing(f"libzfp.so.1: {error}") from error
    for name in ("zfp_field_1d", "zfp_stream_open", "stream_open"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.zfp_stream_set_rate.restype = lib.zfp_stream_set_accuracy.restype = ctypes.c_double
    lib.zfp_decompress.restype = ctypes.c_size_t
    return lib


def chunk(lib, data, count, rate, tolerance):
    """The values of one bit stream."""
    out = np.zeros(count, dtype=np.float32)
    room = ctypes.create_string_buffer(data, len(data) + 64)
    bits = ctypes.c_void_p(lib.stream_open(room, ctypes.c_size_t(len(room))))
    zfp = ctypes.c_void_p(lib.zfp_stream_open(bits))
    field = ctypes.c_void_p(lib.zfp_field_1d(out.ctypes.data_as(ctypes.c_void_p), FLOAT, ctypes.c_size_t(count)))
    if rate is not None:
        lib.zfp_stream_set_rate(zfp, ctypes.c_double(rate), FLOAT, 1, 0)
    else:
        lib.zfp_stream_set_accuracy(zfp, ctypes.c_double(tolerance))
    assert lib.zfp_decompress(zfp, field) > 0
    lib.zfp_field_free(field)
    lib.zfp_stream_close(zfp)
    lib.stream_close(bits)
    return out


def decode(parameters, n, payload):
    lib = library()
    size, tolerance, sized = struct.unpack_from("<QfI", payload)
    assert size == len(payload)
    if math.isnan(tolerance):
        return np.full(n, np.nan, dtype=np.float32)
    counts = [min(CHUNK, n - first) for first in range(0, n, CHUNK)]
    rate, at = None, 16
    if parameters["mode"] == "rate":
        assert sized == 0
        rate = float(parameters["rate"])
        block = max(math.floor(4 * rate + 0.5), 9)  # bits
        sizes = [((count + 3) // 4 * block + 31) // 32 * 4 for count in counts]
    else:
        assert sized == len(counts)
        sizes = struct.unpack_from(f"<{sized}I", payload, at)
        at += 4 * sized
    out = []
    for count, bytes_ in zip(counts, sizes):
        out.append(chunk(lib, payload[at:at + bytes_], count, rate, tolerance))
        at += bytes_
    assert at == size
    return np.concatenate(out) if out else np.zeros(0, dtype=np.float32)

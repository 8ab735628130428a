"""A float32 scale for each block, then codes of 4 or 8 bits; every 32 elements are rotated. quantised() is SDP4Bit's quantiser."""
import numpy as np

from payloads.common import packed

#: Entry (i, j) is -1 to the number of common bits of i and j, over sqrt(32); its own inverse.
HADAMARD = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(32)] for i in range(32)]) / np.sqrt(32)


def philox_first(seed):
    """The first output of Philox-4x32-10 for the draws that all ranks share: counter (0, 0, 0, 2^32 - 1)."""
    c, k = [0, 0, 0, 0xffffffff], [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & 0xffffffff, p >> 32 ^ c[3] ^ k[1], p & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return c[0]


def rotated(parameters, x, back=False):
    """In float64. A last group of fewer than 32 stays as it is."""
    y = x.astype(np.float64)
    if parameters["hadamard"] == "on":
        seed = int(parameters["seed"])
        draw = philox_first(seed) if seed else 0
        matrix = np.diag([-1.0 if draw >> i & 1 else 1.0 for i in range(32)]) @ HADAMARD
        whole = len(x) // 32 * 32
        y[:whole] = (y[:whole].reshape(-1, 32) @ (matrix.T if back else matrix)).reshape(-1)
    return y


def parts(parameters, n, payload):
    """Scales, and codes as signed integers."""
    bits, block = int(parameters["bits"]), int(parameters["block"])
    blocks = -(-n // block)
    assert len(payload) == 4 * blocks + 4 * -(-n * bits // 32)
    scales = np.frombuffer(payload, dtype="<f4", count=blocks)
    codes = packed(payload, 4 * blocks, n, bits).astype(np.int64)
    return scales, np.where(codes >> (bits - 1), codes - (1 << bits), codes)


def decode(parameters, n, payload):
    scales, codes = parts(parameters, n, payload)
    values = codes * np.repeat(scales.astype(np.float64), int(parameters["block"]))[:n]
    return rotated(parameters, values, back=True).astype(np.float32)


def quantised(parameters, x):
    """Scales, and what the rotated elements are in units of them before they are rounded, in float64."""
    block = int(parameters["block"])
    y = rotated(parameters, x)
    most = 2 ** (int(parameters["bits"]) - 1) - 1
    scales = np.array([np.abs(y[at:at + block]).max() / most for at in range(0, len(y), block)])
    scales[scales * most < 2.0 ** -100] = 0
    per_element = np.repeat(scales, block)[:len(y)]
    return scales, np.divide(y, per_element, out=np.zeros_like(y), where=per_element > 0)


def check(parameters, x, payload):
    """Scales and codes are those of the reference but for float32's rounding, which moves an element by less than 1e-5 of the largest."""
    if len(x) == 0 or not np.isfinite(x).all():
        return
    scales, codes = parts(parameters, len(x), payload)
    wanted, units = quantised(parameters, x)
    assert np.allclose(scales, wanted, rtol=1e-6, atol=1e-37)
    most = 2 ** (int(parameters["bits"]) - 1) - 1
    assert np.abs(codes).max() <= most
    off = np.abs(codes - units)
    assert off.max() <= (0.5 if parameters["rounding"] == "nearest" else 1) + 1e-5 * most

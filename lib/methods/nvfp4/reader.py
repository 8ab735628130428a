"""A float32 for the unit, a scale in E4M3 for each 16 elements, then codes of 4 bits."""
import numpy as np

from payloads.common import packed
from payloads.small_float import nearest, values

MOST = np.finfo(np.float32).max


def parts(n, payload):
    """The unit's scale, the codes of the blocks' scales, and those of the elements; n > 0."""
    blocks = (n + 15) // 16
    offset = 4 + (blocks + 3) // 4 * 4
    assert len(payload) == offset + 4 * ((n + 7) // 8)
    assert not any(payload[4 + blocks:offset]), "the padding is zero"
    unit = np.frombuffer(payload, dtype="<f4", count=1)[0]
    return unit, np.frombuffer(payload, dtype=np.uint8, offset=4, count=blocks), packed(payload, offset, n, 4)


def philox_first(seed):
    """The first output of Philox-4x32-10 for the draws that all ranks share: counter (0, 0, 0, 2^32 - 1)."""
    c, k = [0, 0, 0, 0xffffffff], [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & 0xffffffff, p >> 32 ^ c[3] ^ k[1], p & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return c[0]


def rotation(parameters):
    """The matrix that blocks are multiplied by: a Hadamard matrix of order 16 after random signs, normalised."""
    hadamard = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(16)] for i in range(16)])
    draw = philox_first(int(parameters["seed"]))
    return hadamard / 4 @ np.diag([-1.0 if draw >> i & 1 else 1.0 for i in range(16)])


def decode(parameters, n, payload):
    if n == 0:
        assert len(payload) == 0
        return np.zeros(0, dtype=np.float32)
    unit, scales, codes = parts(n, payload)
    out = values("e2m1", codes) * np.repeat(values("e4m3", scales), 16)[:n] * float(unit)
    if parameters["hadamard"] == "on":
        whole = n // 16 * 16
        out[:whole] = (out[:whole].reshape(-1, 16) @ rotation(parameters)).reshape(-1)  # its transpose is its inverse
    return out.astype(np.float32)


def check(parameters, x, payload):
    """Scales and codes are those of TransformerEngine's reference in float32; of rotated blocks the scales, but for rounding."""
    n = len(x)
    if n == 0:
        return
    unit, scales, codes = parts(n, payload)
    if parameters["hadamard"] == "on":
        whole = n // 16 * 16
        x = x.copy()
        x[:whole] = (x[:whole].reshape(-1, 16).astype(np.float64) @ rotation(parameters).T).reshape(-1)
    blocks = np.zeros((len(scales), 16), dtype=np.float32)
    blocks.reshape(-1)[:n] = x
    largest = np.abs(blocks).max(axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        encode = np.minimum(np.float32(6 * 448) / largest.max(), MOST) if largest.max() > 0 else np.float32(1)
        wanted = nearest("e4m3", largest * (encode * np.float32(1 / 6)))
        if parameters["hadamard"] == "on":
            assert abs(float(unit) * float(encode) - 1) < 1e-5
            assert np.abs(wanted.astype(int) - scales).max() <= 1 and np.mean(wanted != scales) < 0.01
            return
        assert unit == np.float32(1) / encode
        assert np.array_equal(wanted, scales)
        factors = np.minimum(np.float32(1) / (values("e4m3", scales).astype(np.float32) * unit), MOST)
    factors[scales == 0] = 0  # where TransformerEngine multiplies by the largest float; the values are zero either way
    scaled = np.copysign(blocks * factors[:, None], blocks).reshape(-1)[:n]
    theirs = nearest("e2m1", scaled)
    if parameters["rounding"] == "nearest":
        assert np.array_equal(codes, theirs)
    else:
        assert np.abs((codes & 7).astype(int) - (theirs & 7)).max() <= 1 and np.array_equal(codes >> 3, theirs >> 3)

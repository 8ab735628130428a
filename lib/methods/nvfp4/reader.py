"""A float32 for the unit, the seed of a rotation where there is one, a scale in E4M3 for each 16 elements, then codes of 4 bits."""
import numpy as np

from payloads.common import packed
from payloads.small_float import nearest, values

MOST = np.finfo(np.float32).max


def parts(parameters, n, payload):
    """The unit's scale, the codes of the blocks' scales, and those of the elements; n > 0."""
    blocks = (n + 15) // 16
    first = 8 if parameters["rounding"] == "eden" else 4
    offset = first + (blocks + 3) // 4 * 4
    assert len(payload) == offset + 4 * ((n + 7) // 8)
    assert not any(payload[first + blocks:offset]), "the padding is zero"
    unit = np.frombuffer(payload, dtype="<f4", count=1)[0]
    return unit, np.frombuffer(payload, dtype=np.uint8, offset=first, count=blocks), packed(payload, offset, n, 4)


def philox(seed):
    """The outputs of Philox-4x32-10 for the draws that all ranks share: counter (0, 0, 0, 2^32 - 1)."""
    c, k = [0, 0, 0, 0xffffffff], [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & 0xffffffff, p >> 32 ^ c[3] ^ k[1], p & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return c


def rotation(parameters, payload):
    """The matrix that blocks of its order are multiplied by, or none: a Hadamard matrix after random signs, normalised."""
    if parameters["rounding"] == "eden":
        order, draws = 128, philox(int(np.frombuffer(payload, dtype="<u4", offset=4, count=1)[0]))
    elif parameters["hadamard"] == "on":
        order, draws = 16, philox(int(parameters["seed"]))
    else:
        return None
    hadamard = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(order)] for i in range(order)])
    return hadamard / np.sqrt(order) @ np.diag([-1.0 if draws[i // 32] >> i % 32 & 1 else 1.0 for i in range(order)])


def turned(x, matrix):
    """Every whole block multiplied by the matrix, in float64."""
    y, whole = x.astype(np.float64), len(x) // len(matrix) * len(matrix)
    y[:whole] = (y[:whole].reshape(-1, len(matrix)) @ matrix.T).reshape(-1)
    return y


def decode(parameters, n, payload):
    if n == 0:
        assert len(payload) == 0
        return np.zeros(0, dtype=np.float32)
    unit, scales, codes = parts(parameters, n, payload)
    out = values("e2m1", codes) * np.repeat(values("e4m3", scales), 16)[:n] * float(unit)
    matrix = rotation(parameters, payload)
    if matrix is not None:
        out = turned(out, matrix.T)  # its transpose is its inverse
    return out.astype(np.float32)


def neighbours(wanted, codes):
    """Asserts that each E4M3 code is the one below or above what was wanted, but for float32's rounding."""
    below, above = values("e4m3", np.maximum(codes, 1) - 1), values("e4m3", np.minimum(codes, 125) + 1)
    assert np.all((below <= wanted * (1 + 1e-5)) & (np.minimum(wanted * (1 - 1e-5), 448) <= above))


def check_eden(parameters, x, payload):
    """Codes are the nearest of rotated elements, in blocks scaled as the authors scale them, and stored scales lie about what makes the
    projection of the result on the gradient the gradient; behind the last 128 elements, scales are rounded up."""
    n, whole = len(x), len(x) // 128 * 128
    unit, scales, codes = parts(parameters, n, payload)
    y = turned(x, rotation(parameters, payload))
    largest = np.abs(np.pad(y, (0, -n % 16)).reshape(-1, 16)).max(axis=1)
    c, most = 17 / 16 * 0.93, largest.max()
    assert abs(float(unit) / (most / 255.99 / (6 / c) if most > 0 else 1) - 1) < 1e-5
    own = np.zeros(len(scales))
    own[:whole // 16] = values("e4m3", nearest("e4m3", largest[:whole // 16] / (6 / c) / float(unit)))
    blocks, signs = y[:whole].reshape(-1, 16), values("e2m1", codes)[:whole].reshape(-1, 16)
    factors = np.divide(1, own[:whole // 16] * float(unit), out=np.zeros(whole // 16), where=own[:whole // 16] > 0)
    theirs = nearest("e2m1", (blocks * factors[:, None]).reshape(-1))
    # A scale or an element that lies between two values may go to either, by float32's rounding.
    same = (codes[:whole] == theirs).reshape(-1, 128).all(axis=1)
    assert np.sum(codes[:whole] != theirs) <= 1e-3 * whole and np.sum(same) >= 0.9 * len(same)
    rounded = (signs * own[:whole // 16, None] * float(unit)).reshape(-1, 128)
    groups = blocks.reshape(-1, 128)
    along = (groups * rounded).sum(axis=1)
    correction = np.divide((groups ** 2).sum(axis=1), along, out=np.ones(len(along)), where=along > 0)
    neighbours((own[:whole // 16].reshape(-1, 8) * correction[:, None])[same], scales[:whole // 16].reshape(-1, 8)[same])
    rest = scales[whole // 16:]
    wanted = largest[whole // 16:] / 6 / float(unit)
    assert np.all(values("e4m3", rest) >= wanted * (1 - 1e-5))
    assert np.all((values("e4m3", np.maximum(rest, 1) - 1) <= wanted * (1 + 1e-5)))
    step = np.repeat(values("e4m3", rest), 16)[:n - whole] * float(unit)
    scaled = np.divide(y[whole:], step, out=np.zeros(n - whole), where=step > 0)
    assert np.all(np.abs((codes[whole:] & 7).astype(int) - (nearest("e2m1", scaled) & 7)) <= 1)


def check(parameters, x, payload):
    """Scales and codes are those of TransformerEngine's reference in float32; of rotated blocks the scales, but for rounding."""
    n = len(x)
    if n == 0:
        return
    if parameters["rounding"] == "eden":
        return check_eden(parameters, x, payload)
    unit, scales, codes = parts(parameters, n, payload)
    if parameters["hadamard"] == "on":
        x = turned(x, rotation(parameters, payload)).astype(np.float32)
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

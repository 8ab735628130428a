"""A codebook of 256 values, and a byte an element that says which of them it is."""
import numpy as np


def parts(n, payload):
    """The codebook and the codes of n > 0 elements."""
    assert len(payload) == 1024 + (n + 3) // 4 * 4
    assert not any(payload[1024 + n:]), "the padding is zero"
    return np.frombuffer(payload, dtype="<f4", count=256), np.frombuffer(payload, dtype=np.uint8, offset=1024, count=n)


def decode(parameters, n, payload):
    if n == 0:
        assert len(payload) == 0
        return np.zeros(0, dtype=np.float32)
    codebook, codes = parts(n, payload)
    return codebook[codes]


def hivemind(x):
    """Codes and codebook as the library's uniform 8-bit quantisation makes them, all in float32; n > 1, not all equal."""
    centred = x - x.mean(dtype=np.float32)
    deviation = np.float32(np.linalg.norm(centred) / np.sqrt(np.float32(len(x) - 1)))
    scale = np.float32(6) * deviation / np.float32(256)
    codes = np.clip(np.rint(centred * (np.float32(1) / scale)) + 128, 0, 255).astype(np.uint8)
    sums = np.zeros(256, dtype=np.float32)
    np.add.at(sums, codes, x)
    return codes, sums / np.maximum(np.bincount(codes, minlength=256), 1).astype(np.float32), centred / scale


def check(parameters, x, payload):
    """hivemind's codes, but for elements at the border of two buckets, and its codebook, but for rounding."""
    if len(x) < 2:
        return
    codebook, codes = parts(len(x), payload)
    theirs, their_codebook, place = hivemind(x)
    at_border = np.abs(np.abs(place - np.rint(place)) - 0.5) < 1e-3
    assert np.array_equal(codes[~at_border], theirs[~at_border])
    differs = codes != theirs
    moved = np.isin(np.arange(256), np.concatenate([codes[differs], theirs[differs]]))
    np.testing.assert_allclose(codebook[~moved], their_codebook[~moved], rtol=2e-5, atol=1e-6 * np.abs(x).max())

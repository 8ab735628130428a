"""A power-of-two scale per 32 elements, or a float32 for all, then packed codes."""
import numpy as np

from payloads.common import packed
from payloads.small_float import FORMATS, nearest, values


def parts(parameters, n, payload):
    """The scale of each element, and the codes."""
    name = parameters["format"]
    bits = 8 if name == "int8" else 1 + sum(FORMATS[name][:2])
    blocks = (n + 31) // 32
    if parameters["scale"] == "unit":
        offset = 4 if n > 0 else 0
        scales = np.repeat(np.frombuffer(payload, dtype="<f4", count=offset // 4).astype(np.float64), n)
    else:
        offset = (blocks + 3) // 4 * 4
        scales = 2.0 ** (np.frombuffer(payload, dtype=np.uint8, count=blocks).astype(np.float64) - 127)
        scales = np.repeat(scales, 32)[:n]
    assert len(payload) == offset + 4 * ((n * bits + 31) // 32)
    return scales, packed(payload, offset, n, bits)


def decode(parameters, n, payload):
    scales, codes = parts(parameters, n, payload)
    name = parameters["format"]
    elements = codes.astype(np.uint8).view(np.int8) / 64.0 if name == "int8" else values(name, codes)
    return (elements * scales).astype(np.float32)


def check(parameters, x, payload):
    """E3M0: the scale is the power of two nearest to the largest magnitude, over 16, and codes are the nearest of all sixteen."""
    if parameters["format"] != "e3m0" or parameters["rounding"] != "nearest":
        return
    scales, codes = parts(parameters, len(x), payload)
    block = max(len(x), 1) if parameters["scale"] == "unit" else 32
    for first in range(0, len(x), block):
        largest = float(np.abs(x[first:first + block]).max())
        if largest < 2.0 ** -120:
            continue
        powers = 2.0 ** np.arange(-130.0, 130.0)
        at = int(np.argmin(np.abs(powers - largest)))  # the lower one of two equally near
        if largest - powers[at] == powers[at + 1] - largest:
            at += 1  # upwards
        at = min(at, 130 + 127)  # the largest code, 16 times the scale, is a finite float
        assert scales[first] == powers[at] / 16, (scales[first], largest)
    assert np.array_equal(codes, nearest("e3m0", x / scales))

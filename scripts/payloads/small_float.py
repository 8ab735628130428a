"""Tables of the values of small floating-point formats, by code, from their definition."""
import numpy as np


def table(exponent_bits, mantissa_bits, bias):
    """Values of all codes without sign; formats whose top codes are NaN or infinite do not send them."""
    values = []
    for code in range(1 << (exponent_bits + mantissa_bits)):
        exponent, fraction = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        if exponent == 0:
            values.append(fraction * 2.0 ** (1 - bias - mantissa_bits))
        else:
            values.append((1 + fraction / (1 << mantissa_bits)) * 2.0 ** (exponent - bias))
    return np.array(values)


FORMATS = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15), "e3m2": (3, 2, 3), "e2m3": (2, 3, 1), "e2m1": (2, 1, 1), "e3m0": (3, 0, 3)}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e3m2": 28.0, "e2m3": 7.5, "e2m1": 6.0, "e3m0": 16.0}


def values(name, codes):
    """The values of codes (sign in the top bit) of a format by name."""
    exponent, mantissa, bias = FORMATS[name]
    magnitude = table(exponent, mantissa, bias)[codes & ((1 << (exponent + mantissa)) - 1)]
    assert np.all(magnitude <= LARGEST[name])
    return np.where(codes >> (exponent + mantissa), -magnitude, magnitude)


def nearest(name, x):
    """The code of the value that is nearest to each element, by comparing with all of them: the even code of two equally near,
    the largest for what lies above it. The sign is that of x, zeros included. For formats whose top code is their largest value."""
    exponent, mantissa, bias = FORMATS[name]
    levels = table(exponent, mantissa, bias)
    levels = levels[levels <= LARGEST[name]]
    magnitude = np.abs(x.astype(np.float64))
    above = np.minimum(np.searchsorted(levels, magnitude), len(levels) - 1)
    below = np.maximum(above - 1, 0)
    up, down = levels[above] - magnitude, magnitude - levels[below]
    codes = np.where((up < down) | ((up == down) & (above % 2 == 0)) | (above == 0) | (magnitude > levels[-1]), above, below)
    return (codes | np.signbit(x).astype(np.int64) << (exponent + mantissa)).astype(np.uint8)

"""Strongest frequencies as range-based floats, with a bitmap."""
import struct

import numpy as np

from payloads.common import packed

TOLERANCE = 2e-5  # transforms of other libraries round differently


def pieces(n, chunk):
    """Lengths of the transforms."""
    if n <= chunk:
        return [n]
    left = n % chunk
    return [chunk] * (n // chunk) + ([max(left, 4)] if left else [])


def numbers(codes, bits, mantissa, pbase, positives):
    """Returns the values of codes of the range-based float."""
    if bits == 32:
        return codes.view(np.float32).astype(np.float64)
    negative = codes > positives
    patterns = (codes.astype(np.int64) - np.where(negative, positives, 0) + pbase - 1) << (23 - mantissa)
    values = np.where(codes == 0, 0, patterns).astype(np.uint32).view(np.float32).astype(np.float64)
    return np.where(negative, -values, values)


def decode(parameters, n, payload):
    if n < 4:
        return np.frombuffer(payload, dtype="<f4", count=n).copy()
    size, kept, row, scale, pbase, positives, bits, mantissa = struct.unpack_from("<QIIfIIHH", payload)
    lengths = pieces(n, n if parameters["chunk"] == "whole" else int(parameters["chunk"]))
    assert size == len(payload) and bits == int(parameters["bits"]) and row == sum(t // 2 + 1 for t in lengths)
    at = 32
    bins = np.arange(row)
    if kept < row:
        words = np.frombuffer(payload, dtype=np.uint8, offset=at, count=4 * ((row + 31) // 32))
        bins = np.flatnonzero(np.unpackbits(words, bitorder="little"))
        at += len(words)
    assert len(bins) == kept and len(payload) == at + 4 * ((2 * kept * bits + 31) // 32)
    components = numbers(packed(payload, at, 2 * kept, bits), bits, mantissa, pbase, positives)
    if parameters["range"] == "auto" and bits != 32 and scale > 0:
        assert np.abs(components).max() == 1, "the largest component does not have the code of 1"
    components *= scale
    spectrum = np.zeros(row, dtype=np.complex128)
    spectrum[bins] = components[0::2] + 1j * components[1::2]
    out, first = [], 0
    for length in lengths:
        piece = spectrum[first:first + length // 2 + 1]
        first += length // 2 + 1
        piece.imag[0] = 0.0
        if length % 2 == 0:
            piece.imag[-1] = 0.0
        out.append(np.fft.irfft(piece, length) * np.sqrt(length))
    return np.concatenate(out)[:n].astype(np.float32)

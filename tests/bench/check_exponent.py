"""Tests that `exponent` sends of captured gradients at most 2 % more than the entropy of their exponents, counted in NumPy, beside signs
and mantissas, which are sent as they are; and that nothing is lost.

Usage: check_exponent.py GRADTOOL CAPTURE...
"""
import csv
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np

HEADER = 8 + 4  # the payload's size, and that of its only chunk


def patterns(data):
    values = data[()]
    return values.astype("<u4") << 16 if values.dtype == np.uint16 else values.astype("<f4").view("<u4")


def rounded(bits):
    return (bits.astype(np.uint64) + 0x7fff + (bits >> 16 & 1)).astype(np.uint32) & 0xffff0000


def sizes(vectors):
    """Mean bytes of exponents at their entropy, and of what is sent as it is."""
    entropy, plain = 0.0, 0
    for bits in vectors:
        counts = np.unique(bits >> 23 & 0xff, return_counts=True)[1]
        entropy -= np.sum(counts * np.log2(counts / len(bits))) / 8 / len(vectors)
        plain += len(bits) * (3 if np.any(bits & 0xffff) else 1) / len(vectors)
    return entropy, plain


for capture in sys.argv[2:]:
    with h5py.File(capture) as file:
        gradients = [patterns(tensor["gradient"]) for tensor in file["tensors"].values()]
    units = [np.concatenate([g[step, rank].reshape(-1) for g in gradients])
             for step in range(gradients[0].shape[0]) for rank in range(gradients[0].shape[1])]
    assert len(units[0]) <= 65536, "one chunk"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.csv"
        subprocess.run([sys.argv[1], "bench", capture, "--codec", "exponent,exponent:dtype=bf16", "--granularity", "model", "--timing",
                        "isolated", "-n", "1", "--csv", path], check=True, stdout=subprocess.DEVNULL)
        with open(path, newline="") as file:
            rows = {row["params"]: row for row in csv.DictReader(file) if row["codec"] == "exponent"}
    for dtype, vectors in (("auto", units), ("bf16", [rounded(bits) for bits in units])):
        row = rows[f"dtype={dtype}"]
        entropy, plain = sizes(vectors)
        exponents = float(row["payload_bytes"]) - plain - HEADER
        print(f"{pathlib.Path(capture).stem} dtype={dtype}: {len(units[0])} elements, {float(row['payload_bytes']):.0f} bytes, of which "
              f"exponents {exponents:.0f}, at their entropy {entropy:.0f} ({entropy / exponents:.4f})")
        assert entropy <= exponents <= entropy / 0.98
        assert dtype == "bf16" or float(row["codec_nmse"]) == 0.0

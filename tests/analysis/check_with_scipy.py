"""Recomputes the tables of `gradtool analyze` that explain gradients, with NumPy and SciPy (scipy_tables), and compares.

The definitions are those of docs/analysis.md. Captures: the real one of a language model in datasets, and three small ones that are made
here.

Usage: check_with_scipy.py GRADTOOL SOURCE_DIR
"""

import csv
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are too small for more

try:
    import numpy as np
    from scipy_tables import captures, certainty, comparing, distribution, kept_bases, losses, low_rank, steps, transforms
except ImportError as missing:
    print(f"{missing.name} is missing")
    sys.exit(77)

GRADTOOL, SOURCE = sys.argv[1:3]
np.seterr(divide="ignore", invalid="ignore")


def check(folder, path, name, layers="."):
    out = os.path.join(folder, name)
    subprocess.run([GRADTOOL, "analyze", path, "--out", out, "--threads", "1", "--layers", layers], check=True, stdout=subprocess.DEVNULL)

    def load(table):
        file = os.path.join(out, table + ".csv")
        if not os.path.exists(file):
            return []
        with open(file, newline="") as f:
            return list(csv.DictReader(f))

    capture, before = captures.read(path, layers), len(comparing.deviations)
    for one in (transforms.check_transforms, steps.check_steps, kept_bases.check_gradiveq, low_rank.check_low_rank, certainty.check_certainty,
                losses.check_losses, distribution.check_distribution):
        one(load, capture)
    comparing.deviations[before:] = [f"{name}: {text}" for text in comparing.deviations[before:]]


def report():
    """Prints for each table of each capture the first deviations and how many there are."""
    tables = {}
    for text in comparing.deviations:
        tables.setdefault(tuple(text.split()[:2]), []).append(text)
    for where, texts in tables.items():
        print(f"{' '.join(where)}: {len(texts)} deviations")
        for text in texts[:12]:
            print("  " + text)


def main():
    with tempfile.TemporaryDirectory() as folder:
        check(folder, os.path.join(SOURCE, "datasets", "llama-shakespeare.h5"), "llama", "query|gate|norm|head")  # a part, which takes half the time
        for name, make in (("made", captures.write_made), ("long", captures.write_long), ("wide", captures.write_wide)):
            path = os.path.join(folder, name + ".h5")
            make(path)
            check(folder, path, name)
    if comparing.deviations:
        report()
        sys.exit(f"{len(comparing.deviations)} of {comparing.compared} numbers deviate from those of NumPy and SciPy")
    print(f"{comparing.compared} numbers agree with NumPy and SciPy")


main()

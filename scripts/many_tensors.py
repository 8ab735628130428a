#!/usr/bin/env python3
"""Writes a capture with as many tensors as a mixture of experts has, each of 8 elements: two workers, two steps.

Usage: scripts/many_tensors.py OUT.h5 [TENSORS]      (with the Python package; reports/many_tensors.md has what commands take for it)
"""
import sys

import numpy as np
from gradtool._writer import GradientWriter, StepRecord, TensorSpec

EXPERTS, PROJECTIONS = 256, ("gate", "up", "down")


def main():
    out, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 44544
    names = [f"model.layers.{i // (3 * EXPERTS)}.mlp.experts.{i % EXPERTS}.{PROJECTIONS[i // EXPERTS % 3]}.weight" for i in range(count)]
    writer = GradientWriter(out, [TensorSpec(name, (8,), "expert") for name in names], 2, {"model": "many-tensors"})
    random = np.random.default_rng(0)
    for step in range(2):
        writer.write(StepRecord(step, [random.standard_normal((2, 8)).astype("f4") for _ in names]))
    writer.close()


if __name__ == "__main__":
    main()

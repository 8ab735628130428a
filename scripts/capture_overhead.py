#!/usr/bin/env python3
"""Measures what a capture from PyTorch costs an iteration: without capture, with one that does not capture this iteration, with the bare
copy of all gradients, and captured. The four take turns, so that what else the machine does meets all of them.

Usage: scripts/capture_overhead.py [--iterations 40] [--batch 32] [--csv FILE]
"""
import argparse
import csv
import pathlib
import statistics
import sys
import tempfile
import time

import torch
from torch import nn

import gradtool


def convolutional():
    """A small VGG: 3.4 million parameters, most of them in convolutions, as training usually has more arithmetic than weights."""
    layers, width = [], 3
    for outputs in (64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool", 512):
        if outputs == "pool":
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--csv", type=pathlib.Path)
    options = parser.parse_args()
    kinds = ("no capture", "capture, other iteration", "copy alone", "captured iteration")
    times = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for kind in kinds:
            torch.manual_seed(0)
            model = convolutional()
            every = {"capture, other iteration": 10**9, "captured iteration": 1}.get(kind)
            capture = None
            if every:
                capture = gradtool.Capture(model, f"{folder}/{every}.h5", every=every, first=0 if every == 1 else 10**8)
            runs[kind] = model, torch.optim.SGD(model.parameters(), 1e-3), capture
        inputs, targets = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,))
        for iteration in range(options.iterations + 2):
            for kind, (model, optimizer, capture) in runs.items():
                begin = time.perf_counter()
                optimizer.zero_grad(set_to_none=False)
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                if capture:
                    capture.step(loss)
                elif kind == "copy alone":
                    kept = [p.grad.clone() for p in model.parameters()]
                optimizer.step()
                if iteration >= 2:
                    times[kind].append(time.perf_counter() - begin)
        for _, _, capture in runs.values():
            if capture:
                capture.close()
    parameters = sum(p.numel() for p in runs["no capture"][0].parameters())
    rows = [{"what": kind, "median_ms": round(1e3 * statistics.median(times[kind]), 2),
             "against_copy": round(statistics.median(a / b for a, b in zip(times[kind], times["copy alone"])), 3)} for kind in kinds]
    for row in rows:
        print(f"{row['what']:26} {row['median_ms']:9.2f} ms   {row['against_copy']:.3f} of the iteration with the bare copy")
    print(f"{parameters} parameters, {4 * parameters / 1e6:.1f} MB of gradients an iteration")
    if options.csv:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

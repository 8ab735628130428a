#!/usr/bin/env python3
"""Writes a capture of the shape of a large model, and measures what gradtool takes for one of GPT-2 124M, 4 workers, 2 steps (4 GB):
seconds and peak memory of validate, info, analyze and a bench of six codecs.

Usage: scripts/large_capture.py --out FOLDER [--keep]
       scripts/large_capture.py --write CAPTURE.h5 [--model gpt2|resnet50] [--workers N]
The values are drawn: a low-rank signal that all workers share, and noise of each worker with heavy tails. Needs the Python package
(PYTHONPATH or installed), h5py and NumPy, and for the first form `gradtool` in PATH.
"""
import argparse
import csv
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

from gradtool._writer import GradientWriter, StepRecord, TensorSpec

WIDTH, LAYERS, VOCABULARY, CONTEXT, WORKERS, STEPS = 768, 12, 50257, 1024, 4, 2


def resnet50():
    """He et al. 2016, table 1, as torchvision numbers its parameters: 25,557,032 in 161 tensors."""
    def convolution(name, inputs, outputs, kernel):
        yield TensorSpec(f"{name}.weight", (outputs, inputs, kernel, kernel), "conv", "OIHW")
        yield TensorSpec(f"{name}.bn.weight", (outputs,), "norm")
        yield TensorSpec(f"{name}.bn.bias", (outputs,), "bias")

    yield from convolution("conv1", 3, 64, 7)
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = 64 << stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            yield from convolution(f"{name}.conv1", inputs, planes, 1)
            yield from convolution(f"{name}.conv2", planes, planes, 3)
            yield from convolution(f"{name}.conv3", planes, 4 * planes, 1)
            if block == 0:
                yield from convolution(f"{name}.downsample", inputs, 4 * planes, 1)
            inputs = 4 * planes
    yield TensorSpec("fc.weight", (1000, 2048), "linear", "OI")
    yield TensorSpec("fc.bias", (1000,), "bias")


def gpt2():
    """The parameters of GPT-2 124M: 124,439,808 in all, the head tied to the embedding."""
    yield TensorSpec("wte.weight", (VOCABULARY, WIDTH), "embedding", "VD")
    yield TensorSpec("wpe.weight", (CONTEXT, WIDTH), "embedding", "VD")
    for layer in range(LAYERS):
        for norm in ("ln_1", "ln_2"):
            yield TensorSpec(f"h.{layer}.{norm}.weight", (WIDTH,), "norm")
            yield TensorSpec(f"h.{layer}.{norm}.bias", (WIDTH,), "bias")
        for name, inputs, outputs in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
                                      ("mlp.c_fc", WIDTH, 4 * WIDTH), ("mlp.c_proj", 4 * WIDTH, WIDTH)):
            yield TensorSpec(f"h.{layer}.{name}.weight", (inputs, outputs), "linear", "IO")
            yield TensorSpec(f"h.{layer}.{name}.bias", (outputs,), "bias")
    yield TensorSpec("ln_f.weight", (WIDTH,), "norm")
    yield TensorSpec("ln_f.bias", (WIDTH,), "bias")


MODELS = {"gpt2": ("GPT-2 124M", gpt2, 124_439_808), "resnet50": ("ResNet-50", resnet50, 25_557_032)}


def gradients(specs, workers, step):
    """One tensor after the other, [W, n], so that memory holds one of them."""
    for number, spec in enumerate(specs):
        rng = np.random.default_rng([step, number])
        rows = spec.shape[0]
        columns = spec.elements // rows
        signal = (rng.standard_normal((rows, 4), "f4") @ rng.standard_normal((4, columns), "f4")).ravel() * 5e-5
        values = np.empty((workers, spec.elements), "f4")
        for worker in range(workers):
            row = values[worker]
            rng.standard_normal(out=row, dtype="f4")
            row *= np.abs(row)  # heavier tails than a normal distribution
            row *= 1e-4
            row += signal
        yield values


def peak_of(command):
    """Seconds and peak memory in MB of a command, which must end well."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))} failed: {errors.decode()[-500:]}")
    return time.monotonic() - begin, usage.ru_maxrss / 1024


def write(capture, model, workers):
    name, tensors, elements = MODELS[model]
    specs = list(tensors())
    assert sum(spec.elements for spec in specs) == elements
    writer = GradientWriter(capture, specs, workers, {"producer": "large_capture.py", "model": f"{name}, drawn values"}, (), True)
    for step in range(STEPS):
        writer.write(StepRecord(step, gradients(specs, workers, step)))
    writer.close()
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, help="folder of the measured capture and of the results")
    parser.add_argument("--keep", action="store_true", help="do not remove the capture afterwards")
    parser.add_argument("--write", type=pathlib.Path, metavar="CAPTURE", help="write this capture and measure nothing")
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt2")
    parser.add_argument("--workers", type=int, default=WORKERS)
    options = parser.parse_args()
    if (options.write is None) == (options.out is None):
        parser.error("give one of --out and --write")
    if options.write:
        return write(options.write, options.model, options.workers)
    options.out.mkdir(parents=True, exist_ok=True)
    capture = options.out / "gpt2-124m.h5"
    # Everything runs in a process of its own; a child's peak memory is at least that of its parent, which therefore stays small.
    rows = []
    codecs = [a for c in ("bf16", "int8", "qsgd:bits=4", "topk:ratio=0.01", "powersgd:rank=4", "signsgd") for a in ("--codec", c)]
    for name, command in (("write", [sys.executable, __file__, "--write", capture]),
                          ("validate", ["gradtool", "validate", capture]), ("info", ["gradtool", "info", capture]),
                          ("analyze", ["gradtool", "analyze", capture, "--out", options.out / "analysis"]),
                          ("bench, 6 codecs", ["gradtool", "bench", capture, *codecs, "--csv", options.out / "gpt2-124m.csv"])):
        rows.append((name, *peak_of(command)))
        print(f"{name}: {rows[-1][1]:.0f} s, {rows[-1][2]:.0f} MB", flush=True)
    with open(options.out / "large_capture.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("what", "seconds", "peak_mb"), *((n, f"{s:.1f}", f"{m:.0f}") for n, s, m in rows)])
    print(f"capture: {capture.stat().st_size / 1e9:.2f} GB; wrote {options.out / 'large_capture.csv'}")
    if not options.keep:
        capture.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

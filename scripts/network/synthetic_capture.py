#!/usr/bin/env python3
"""Writes a gradient file with the tensor shapes of a known network and made-up values, for measuring times and bytes at a
size that one would not train here. Do not read errors off it: the values have the heavy tails, the differing scales of
layers, the agreement between workers and the low rank of real gradients only roughly.

Usage: synthetic_capture.py OUT.h5 --model {resnet50,resnet32} [--workers 4] [--steps 2] [--seed 1]
Needs numpy and h5py. A ResNet-50 takes 102 MB for each worker and step.
"""
import argparse
import sys

try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"synthetic_capture.py: {missing}; it needs numpy and h5py", file=sys.stderr)
    sys.exit(77)


def conv(name, out, into, size):
    return [(f"{name}.weight", (out, into, size, size), "conv", "OIHW")]


def norm(name, channels):
    return [(f"{name}.weight", (channels,), "norm", "O"), (f"{name}.bias", (channels,), "bias", "O")]


def linear(name, out, into):
    return [(f"{name}.weight", (out, into), "linear", "OI"), (f"{name}.bias", (out,), "bias", "O")]


def resnet50():
    """25 557 032 parameters in 161 tensors (He et al., 2016, Table 1; names as in torchvision)."""
    tensors = conv("conv1", 64, 3, 7) + norm("bn1", 64)
    into = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
        for block in range(blocks):
            at = f"layer{stage}.{block}"
            tensors += conv(f"{at}.conv1", width, into, 1) + norm(f"{at}.bn1", width)
            tensors += conv(f"{at}.conv2", width, width, 3) + norm(f"{at}.bn2", width)
            tensors += conv(f"{at}.conv3", 4 * width, width, 1) + norm(f"{at}.bn3", 4 * width)
            if block == 0:
                tensors += conv(f"{at}.downsample.0", 4 * width, into, 1) + norm(f"{at}.downsample.1", 4 * width)
            into = 4 * width
    return tensors + linear("fc", 1000, into)


def resnet32():
    """464 154 parameters: the CIFAR network of 32 layers (He et al., 2016, section 4.2), shortcuts without parameters."""
    tensors = conv("conv1", 16, 3, 3) + norm("bn1", 16)
    into = 16
    for stage, width in enumerate([16, 32, 64], start=1):
        for block in range(5):
            at = f"layer{stage}.{block}"
            tensors += conv(f"{at}.conv1", width, into, 3) + norm(f"{at}.bn1", width)
            tensors += conv(f"{at}.conv2", width, width, 3) + norm(f"{at}.bn2", width)
            into = width
    return tensors + linear("fc", 10, into)


def values(random, shape, scale, common):
    """One worker's gradient: what all workers see (low rank, where there is a matrix) plus its own heavy-tailed noise."""
    own = random.standard_t(3, size=shape).astype("f4")
    return scale * (common + 0.5 * own)


def low_rank(random, shape, rank=4):
    if len(shape) == 1:
        return random.standard_normal(shape, dtype="f4")
    rows, columns = shape[0], int(np.prod(shape[1:]))
    rank = min(rank, rows, columns)
    left = random.standard_normal((rows, rank), dtype="f4")
    right = random.standard_normal((rank, columns), dtype="f4")
    return (left @ right / np.sqrt(rank)).reshape(shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--model", choices=["resnet50", "resnet32"], required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.workers < 1 or options.steps < 1:
        parser.error("--workers and --steps are at least 1")
    tensors = {"resnet50": resnet50, "resnet32": resnet32}[options.model]()
    random = np.random.default_rng(options.seed)
    with h5py.File(options.out, "w") as file:
        file.attrs.update({"format": "gradtool.gradients", "schema_version": 1, "complete": 1,
                           "producer": "synthetic_capture.py", "created": "1970-01-01T00:00:00Z",
                           "model": f"{options.model}-sized, synthetic values", "dataset": "none", "optimizer": "none",
                           "seed": options.seed, "workers": options.workers, "batch_size": 1, "micro_batches": 1,
                           "command": "synthetic_capture.py " + " ".join(sys.argv[2:])})
        file["steps/iteration"] = np.arange(options.steps, dtype="i8")
        for number, (name, shape, kind, layout) in enumerate(tensors):
            n = int(np.prod(shape))
            group = file.create_group(f"tensors/{number:04d}")
            group.attrs.update({"name": name, "shape": np.array(shape, dtype="i8"), "kind": kind, "layout": layout})
            gradient = group.create_dataset("gradient", (options.steps, options.workers, n), "f4",
                                            chunks=(1, 1, min(n, 1 << 20)))
            scale = 1e-3 * np.exp(random.normal(0.0, 1.0))
            for step in range(options.steps):
                common = low_rank(random, shape)
                for worker in range(options.workers):
                    gradient[step, worker] = values(random, shape, scale, common).reshape(-1)
    total = sum(int(np.prod(shape)) for _, shape, _, _ in tensors)
    print(f"wrote {options.out}: {len(tensors)} tensors, {total} elements, {options.workers} workers, {options.steps} steps")


if __name__ == "__main__":
    main()

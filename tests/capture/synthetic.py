"""Helpers that the tests of capture share: a tiny data set in IDX files, and running the program."""
import gzip
import json
import os
import struct
import subprocess
import sys

import numpy as np


def write_images(folder, count=512, prefix="train", seed=0):
    """`count` images of 28 x 28 pixels whose brightest two rows tell their label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    pixels = rng.integers(0, 96, (count, 28, 28)).astype(np.uint8)
    for image, label in zip(pixels, labels):
        image[2 * label:2 * label + 2] += 150
    with gzip.open(os.path.join(folder, f"{prefix}-images-idx3-ubyte.gz"), "wb", compresslevel=1) as file:
        file.write(struct.pack(">4I", 0x803, count, 28, 28) + pixels.tobytes())
    with open(os.path.join(folder, f"{prefix}-labels-idx1-ubyte"), "wb") as file:
        file.write(struct.pack(">2I", 0x801, count) + labels.tobytes())


def run(program, *arguments, **options):
    """The finished process; ends the test as skipped when capture is not built in."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=200, **options)
    if done.returncode == 77:
        print(done.stderr.strip())
        sys.exit(77)
    return done


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def contents(path):
    """Everything in a gradient file but when it was made and how long that took: {name of data set or attribute: value}."""
    import h5py
    found = {}

    def visit(name, item):
        for key, value in item.attrs.items():
            found[f"{name}@{key}"] = np.asarray(value)
        if isinstance(item, h5py.Dataset):
            found[name] = item[...]

    with h5py.File(path, "r") as file:
        visit("/", file)
        file.visititems(visit)
    found.pop("/@created")
    for timed in ("steps/compute_seconds", "readiness/ready", "readiness/backward_share"):
        found.pop(timed, None)
    return found


def reported_steps(path):
    """The steps that a capture with --log-steps says, in the file of its standard error, to have written."""
    with open(path) as log:
        return [int(line.split()[-1]) for line in log.read().splitlines() if line.startswith("captured step ")]


def check_killed_capture(program, path, steps, whole, what):
    """The file that a killed capture left: it opens, is marked incomplete, and every step in `steps`, those that were
    reported, is there. Training is deterministic, so values are compared with `whole`, contents() of an undisturbed capture."""
    info = run(program, "info", path, "--json", "-")
    check(info.returncode == 0, f"{what}: info says {info.stderr}")
    info = json.loads(info.stdout)
    check(not info["complete"], f"{what}: marked complete")
    check(len(steps) <= info["steps"] <= len(steps) + 1, f"{what}: {len(steps)} reported, {info['steps']} readable")
    found = contents(path)
    check(found["steps/iteration"][:len(steps)].tolist() == steps, f"{what}: iterations")
    for key, values in found.items():
        if key.endswith("/gradient") or key == "steps/loss":
            check(len(values) >= len(steps), f"{what}: {key} has {len(values)} steps")
            check(np.isfinite(np.asarray(values[:len(steps)], dtype=np.float64)).all(), f"{what}: {key}: not finite")
            count = min(len(steps), len(whole[key]))
            check(np.array_equal(values[:count], whole[key][:count]), f"{what}: {key} differs")

"""`gradtool analyze --device cuda` writes the tables of `--device cpu`, to 1e-5 relative. Skipped where there is no GPU."""

import csv
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np

GRADTOOL = sys.argv[1]
TOLERANCE = 1e-5
TABLES = ["spectrum.csv", "spectrum_bands.csv", "correlation.csv", "eigenvalues.csv", "variance.csv"]


def write(path, micro_batches, workers=3, steps=5):
    """Tensors with every property that an analysis treats in a way of its own."""
    rng = np.random.default_rng(11)
    shapes = {"conv.weight": ("conv", "OIHW", (5, 3, 3, 3)), "odd": ("linear", "OI", (1031,)),
              "power of two": ("linear", "OI", (1024,)), "several slices": ("other", "", (4501,)),
              "one": ("bias", "", (1,)), "two": ("bias", "", (2,)), "zero": ("bias", "", (70,)),
              "constant": ("norm", "", (33,)), "ties": ("other", "", (300,)), "not finite": ("other", "", (500,)),
              "half zero": ("linear", "OI", (640,))}
    with h5py.File(path, "w") as f:
        f.attrs.update({"format": "gradtool.gradients", "schema_version": 1, "complete": 1, "producer": "numpy",
                        "created": "2024-01-01T00:00:00Z", "model": "toy", "workers": workers,
                        "micro_batches": micro_batches})
        f["steps/iteration"] = np.arange(steps, dtype="i8")
        for i, (name, (kind, layout, shape)) in enumerate(shapes.items()):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update({"name": name, "shape": np.array(shape, "i8"), "kind": kind, "layout": layout})
            n = int(np.prod(shape))
            common = np.cumsum(rng.standard_normal((steps, 1, n)), axis=2) * 1e-3
            values = (common + rng.standard_normal((steps, workers, n)) ** 3 * 1e-2).astype("f4")
            if name == "zero":
                values[:] = 0
            if name == "constant":
                values[:] = 0.1
            if name == "ties":
                values = rng.integers(-2, 3, values.shape).astype("f4")
            if name == "half zero":
                values[:, :, ::2] = 0
            if name == "not finite":
                values[1, -1, 7:9] = np.nan, np.inf
            group.create_dataset("gradient", data=values, chunks=(1, 1, n), maxshape=(None, workers, n))
            if micro_batches > 1 and name != "odd":
                spread = 1 + rng.standard_normal(values.shape) ** 2
                moments = (np.nan_to_num(values, posinf=0) ** 2 / micro_batches * spread).astype("f4")
                if name == "half zero":
                    moments[:, :, 1] = 0  # impossible: less than G^2 / K
                group.create_dataset("second_moment", data=moments, chunks=(1, 1, n), maxshape=(None, workers, n))


def read(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def floor(table, row, column):
    """Returns the magnitude that counts as zero: a difference that rounding in double precision may leave where numbers cancel."""
    if column == "eigenvalue":
        largest = max(float(r["eigenvalue"]) for r in table if (r["tensor"], r["slice"]) == (row["tensor"], row["slice"]))
        return 1e-12 * largest
    if column == "mean":
        return 1e-12 * float(row["std"])
    return 1e-12


def compare(name, cpu, gpu):
    assert len(cpu) == len(gpu) > 0, (name, len(cpu), len(gpu))
    for row, other in zip(cpu, gpu):
        assert row.keys() == other.keys()
        for column, value in row.items():
            if value == other[column]:
                continue
            where = (name, row["tensor"], column, value, other[column])
            assert value != "" and other[column] != "", where
            a, b = float(value), float(other[column])
            assert abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) + floor(cpu, row, column), where


def analyze(path, out, *arguments):
    return subprocess.run([GRADTOOL, "analyze", path, "--out", out, *arguments], capture_output=True, text=True)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    write("workers.h5", micro_batches=1)
    write("moments.h5", micro_batches=4)
    write("alone.h5", micro_batches=1, workers=1, steps=2)
    first = analyze("workers.h5", "gpu", "--device", "cuda")
    if first.returncode == 77:
        assert first.stdout == "" and first.stderr.count("\n") == 1 and "CUDA" in first.stderr, first.stderr
        print(first.stderr.strip())
        sys.exit(77)
    nowhere = analyze("workers.h5", "gpu", "--device", "cuda:999")
    assert nowhere.returncode == 77 and "needs GPU 999" in nowhere.stderr, nowhere.stderr

    for path, options in (("workers.h5", []), ("moments.h5", ["--samples", "3", "--taps", "2", "--steps", "1:4"]),
                          ("alone.h5", [])):
        cpu, gpu = analyze(path, "cpu", *options), analyze(path, "gpu", "--device", "cuda:0", *options)
        assert cpu.returncode == 0 and gpu.returncode == 0, (cpu.stderr, gpu.stderr)
        for name in TABLES:
            compare(f"{path} {name}", read(f"cpu/{name}"), read(f"gpu/{name}"))
    analyze("alone.h5", "again", "--device", "cuda")
    for name in TABLES:
        with open("gpu/" + name) as once, open("again/" + name) as again:
            assert once.read() == again.read(), name + " is not the same in a second run"
print("ok")

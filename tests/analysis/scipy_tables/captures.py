"""The captures that are read, and small ones whose shapes, zeros, second moments and weights reach cases that the real one does not."""

import re

import h5py
import numpy as np


def to_bfloat16(values):
    bits = values.astype("f4").view("u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("u2")


def from_bfloat16(bits):
    return (bits.astype("u4") << 16).view("f4").astype("f8")


def write(path, steps, workers, micro, tensors):
    """Writes a capture. A tensor is a name, a shape, a kind, a layout, and arrays by the names of their data sets."""
    with h5py.File(path, "w") as f:
        f.attrs.update({"format": "gradtool.gradients", "schema_version": 1, "complete": 1, "producer": "numpy",
                        "created": "2024-01-01T00:00:00Z", "model": "made up", "dataset": "noise", "optimizer": "sgd", "seed": 7,
                        "workers": workers, "batch_size": 8, "micro_batches": micro, "command": "none"})
        f["steps/iteration"] = np.arange(steps, dtype="i8") * 5 + 2
        for i, (name, shape, kind, layout, arrays) in enumerate(tensors):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update({"name": name, "shape": np.array(shape, "i8"), "kind": kind, "layout": layout})
            for member, values in arrays.items():
                data = group.create_dataset(member, data=values)
                if values.dtype == np.uint16:
                    data.attrs["dtype"] = "bfloat16"


def read(path, layers):
    """The tensors of a capture whose names have a match of the expression, as float64."""
    tensors = []
    with h5py.File(path) as f:
        for number in sorted(f["tensors"], key=int):
            group = f["tensors"][number]
            if not re.search(layers, group.attrs["name"]):
                continue
            t = {"name": group.attrs["name"], "kind": group.attrs["kind"], "shape": tuple(int(n) for n in group.attrs["shape"])}
            for member in ("gradient", "second_moment", "weight"):
                t[member] = None
                if member in group:
                    data = group[member]
                    t[member] = from_bfloat16(data[:]) if data.attrs.get("dtype") == "bfloat16" else data[:].astype("f8")
            t["finite"] = bool(np.isfinite(t["gradient"]).all())
            t["mean"] = t["gradient"].mean(axis=1)
            tensors.append(t)
        return {"tensors": tensors, "iteration": f["steps/iteration"][:], "micro": int(f.attrs.get("micro_batches", 1))}


def smooth_noise(rng, n):
    return np.convolve(rng.standard_normal(n + 8), np.ones(6) / 6, "same")[:n]


def write_made(path):
    """Convolution, matrices, vectors, zeros, constants, a range that float16 does not have, and a tensor with a NaN."""
    rng = np.random.default_rng(11)
    steps, workers, micro = 9, 3, 4
    tensors = []
    for name, shape, kind, layout, more in (
            ("conv", (6, 4, 3, 3), "conv", "OIHW", "vw"), ("narrow", (5, 3, 1, 4), "conv", "OIHW", "w"),
            ("linear", (40, 25), "linear", "OI", "w"), ("bias", (37,), "bias", "", "v"), ("tiny", (3,), "bias", "", ""),
            ("single", (1,), "other", "", "w"), ("blocks", (90, 100), "linear", "OI", ""), ("hot", (50, 21), "other", "", "w"),
            ("half", (33, 7), "embedding", "OI", ""), ("pauses", (20,), "norm", "", "v"), ("broken", (5,), "norm", "", "w")):
        n = int(np.prod(shape))
        samples = rng.standard_normal((steps, workers, micro, n)) + 0.7 * rng.standard_normal(n)
        if name == "conv":
            samples += smooth_noise(rng, n)
        if name == "linear":
            samples *= rng.random((steps, workers, 1, n)) < 0.8
        if name == "blocks":
            samples += rng.standard_normal((steps, 1, 1, 2)) @ (0.5 * rng.standard_normal((2, n)))
        if name == "hot":
            samples = 1e6 * samples**3
        if name == "pauses":
            samples[4] = 0
            samples[6] = 0.25
        gradient = (samples * 1e-2).mean(axis=2)
        if name == "broken":
            gradient[2, 1, 3] = np.nan
        if name == "half":
            gradient[3] = 0
        stored = to_bfloat16(gradient) if name == "half" else gradient.astype("f2" if name == "narrow" else "f4")
        arrays = {"gradient": stored}
        if "v" in more:
            arrays["second_moment"] = ((samples * 1e-2 / micro) ** 2).sum(axis=2).astype("f4")
        if "w" in more:
            arrays["weight"] = (0.05 * rng.standard_normal((steps, n)) * (rng.random((steps, n)) < 0.99)).astype("f4")
        tensors.append((name, shape, kind, layout, arrays))
    write(path, steps, workers, micro, tensors)


def write_long(path):
    """More steps than any table looks at, and two workers."""
    rng = np.random.default_rng(12)
    steps, tensors = 20, []
    for name, shape, kind, layout in (("matrix", (9, 8), "linear", "OI"), ("vector", (70,), "bias", "")):
        n = int(np.prod(shape))
        drift = np.cumsum(rng.standard_normal((steps, 1, n)), axis=0)
        weight = 0.05 * rng.standard_normal((steps, n))
        tensors.append((name, shape, kind, layout, {"gradient": (rng.standard_normal((steps, 2, n)) + drift).astype("f4"),
                                                    "weight": weight.astype("f4")}))
    write(path, steps, 2, 1, tensors)


def write_wide(path):
    """One worker, and a tensor that is cut into pieces."""
    rng = np.random.default_rng(13)
    n = 2 * 136850 + 1  # of both pieces the transforms are quick
    tensors = [("pieces", (n,), "other", "", {"gradient": (rng.standard_normal((4, 1, n)) ** 3 * smooth_noise(rng, n)).astype("f4")}),
               ("matrix", (258, 257), "linear", "OI", {"gradient": rng.standard_normal((4, 1, 258 * 257)).astype("f4")})]
    write(path, 4, 1, 1, tensors)

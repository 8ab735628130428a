"""A gradient file as a third party would write one, with h5py and the document alone."""

import h5py
import numpy as np

SHAPES = [("conv.weight", (8, 3, 3, 3), "conv", "OIHW"), ("conv.bias", (8,), "bias", ""), ("scale", (), "other", "")]


def bfloat16_bits(x):
    """float32 to bfloat16, round to nearest even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def gradients(steps, workers, dtype, seed=1):
    """Returns the values of each tensor, as float32 rounded to `dtype`: {number: array [S, W, n]}."""
    random = np.random.default_rng(seed)
    values = {}
    for t, (_, shape, _, _) in enumerate(SHAPES):
        x = (random.standard_normal((steps, workers, int(np.prod(shape, dtype=int)))) * 1e-3).astype(np.float32)
        if dtype == "f16":
            x = x.astype(np.float16).astype(np.float32)
        if dtype == "bf16":
            x = (bfloat16_bits(x).astype(np.uint32) << 16).view(np.float32)
        values[t] = x
    return values


def write(path, steps=3, workers=2, dtype="f32", libver="earliest", gradient_options=None, seed=1):
    options = gradient_options or {}
    with h5py.File(path, "w", libver=libver) as file:
        file.attrs.update(format="gradtool.gradients", schema_version=1, complete=1, producer="conforming.py",
                          created="2025-01-01T00:00:00Z", model="toy", dataset="noise", optimizer="sgd", seed=seed,
                          workers=workers, batch_size=16, micro_batches=1, command="conforming.py")
        file["steps/iteration"] = np.arange(steps, dtype=np.int64) * 10
        file["steps/epoch"] = np.arange(steps) / 10
        file["steps/learning_rate"] = np.full(steps, 0.1)
        file["steps/loss"] = np.ones((steps, workers), dtype=np.float32)
        file["steps/compute_seconds"] = np.full((steps, workers), 0.25)
        for t, x in gradients(steps, workers, dtype, seed).items():
            name, shape, kind, layout = SHAPES[t]
            group = file.create_group(f"tensors/{t:04d}")
            group.attrs.update(name=name, shape=np.array(shape, dtype=np.int64), kind=kind, layout=layout)
            stored = {"f32": x, "f16": x.astype(np.float16), "bf16": bfloat16_bits(x)}[dtype]
            data = group.create_dataset("gradient", data=stored, **options)
            if dtype == "bf16":
                data.attrs["dtype"] = "bfloat16"
            group["second_moment"] = x * x
            group["weight"] = x[:, 0, :] + 1

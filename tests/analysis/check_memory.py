"""The memory of `gradtool analyze` is bounded by the largest tensor, not by the file: 32 MiB of steps change it little, and
10,000 workers, of whom there are 50 million pairs, nothing."""

import os
import sys
import tempfile

import h5py
import numpy as np

GRADTOOL, N, WORKERS, THREADS = sys.argv[1], 1 << 15, 2, 2
MIB = 1 << 20


def write(path, steps, workers=WORKERS, n=N):
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as f:
        f.attrs.update({"format": "gradtool.gradients", "schema_version": 1, "complete": 1, "producer": "numpy",
                        "created": "2024-01-01T00:00:00Z", "workers": workers, "micro_batches": 1})
        f["steps/iteration"] = np.arange(steps, dtype="i8")
        group = f.create_group("tensors/0000")
        group.attrs.update({"name": "t", "shape": np.array([n], "i8"), "kind": "other", "layout": ""})
        data = group.create_dataset("gradient", (steps, workers, n), "f4", chunks=(1, 1 if n == N else workers, n),
                                    maxshape=(None, workers, n))
        for step in range(steps):
            data[step] = rng.standard_normal((workers, n), dtype="f4")


def peak_bytes(*arguments):
    with open(os.devnull, "w") as nothing:
        child = os.posix_spawn(GRADTOOL, [GRADTOOL, "analyze", *arguments], os.environ,
                               file_actions=[(os.POSIX_SPAWN_DUP2, nothing.fileno(), 1)])
        _, status, usage = os.wait4(child, 0)
    assert status == 0, status
    return usage.ru_maxrss * 1024


with tempfile.TemporaryDirectory() as folder:
    peaks = []
    for steps in (128, 256):
        path = os.path.join(folder, f"{steps}.h5")
        write(path, steps)
        peaks.append(peak_bytes(path, "--out", os.path.join(folder, "out"), "--threads", str(THREADS)))
    path = os.path.join(folder, "workers.h5")
    write(path, 3, 10000, 4)
    crowd = peak_bytes(path, "--out", os.path.join(folder, "out"), "--threads", str(THREADS))
    small, large = peaks
    print(f"peak memory {small / MIB:.0f} MiB with 128 steps (32 MiB), {large / MIB:.0f} MiB with 256 steps (64 MiB), "
          f"{crowd / MIB:.0f} MiB with 10,000 workers (0.5 MB)")
    # A sanitizer's shadow memory and quarantine are not what is measured here.
    if "GRADTOOL_SANITIZED" in os.environ:
        sys.exit(77)
    # docs/analysis.md: 40 MiB for the program, and for each thread 60 MiB or ten times the largest tensor.
    assert large < (40 + THREADS * 60) * MIB, large
    assert crowd < (40 + THREADS * 60) * MIB, crowd
    assert large - small < 24 * MIB, (small, large)

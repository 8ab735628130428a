"""The methods of the papers that gradtool stands on, written here once more in NumPy from the papers, step by step with
their state, against what gradtool bench reduces: variance-based compression (Tsuzuku et al. 2018), its hybrid with Strom's
threshold, importance-weighted pruning (Cheng and Xu 2019), and GradiVeQ (Yu et al. 2018). On a capture with weights and
second moments.

Usage: check_seed_papers.py GRADTOOL [CAPTURE]      (without a capture: a synthetic one)
"""
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np

GRADTOOL = sys.argv[1]
F = np.float32
RANKS, STEPS, K = 3, 6, 4
SHAPES = {"conv.weight": (16, 8, 3, 3), "conv.bias": (16,), "fc.weight": (40, 50)}


def write_capture(path):
    """K micro-batches whose means make the gradient, and the sum of their squared shares the second moment."""
    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as f:
        f.attrs.update(dict(format="gradtool.gradients", schema_version=1, complete=1, producer="test", created="2026-01-01T00:00:00Z",
                            model="synthetic", dataset="none", optimizer="sgd", seed=3, workers=RANKS, batch_size=8,
                            micro_batches=K, command="check_seed_papers.py"))
        f["steps/iteration"] = np.arange(STEPS, dtype="i8")
        for i, (name, shape) in enumerate(SHAPES.items()):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update(dict(name=name, kind="conv" if "conv.w" in name else "linear" if "fc" in name else "bias",
                                    layout="OIHW" if len(shape) == 4 else "OI" if len(shape) == 2 else ""))
            group.attrs["shape"] = np.array(shape, dtype="i8")
            n = int(np.prod(shape))
            common = rng.standard_normal((1, 1, 1, n)) * np.exp(rng.standard_normal(n))
            parts = (1e-2 * (common + 2 * rng.standard_normal((STEPS, RANKS, K, n)))).astype(F)
            group["gradient"] = parts.mean(axis=2)
            group["second_moment"] = ((parts / K) ** 2).sum(axis=2)
            group["weight"] = (0.1 * rng.standard_normal((STEPS, n))).astype(F)


def powers_of_two(values):
    """Section 4.2 of the VGC paper: the nearest power of two, at most 7 below the largest's, or nothing."""
    a = np.abs(values).astype(np.float64)
    top = np.floor(np.log2(a.max()))
    low, high = 2.0 ** np.floor(np.log2(a)), 2.0 ** np.ceil(np.log2(a))
    q = np.minimum(np.where(a - low < high - a, low, high), 2.0 ** top)
    return np.where(top - np.log2(q) > 7, 0.0, np.sign(values) * q)


def vgc(group, alpha, tau=0.0, zeta=0.999):
    x, moment = group["gradient"][...], group["second_moment"][...]
    r, v = np.zeros(x.shape[1:], F), np.zeros(x.shape[1:], F)
    for s in range(x.shape[0]):
        y = np.zeros(x.shape[2])
        r += x[s]
        v += moment[s]
        hit = r * r > F(alpha) * v
        if tau:
            hit &= np.abs(r) > F(tau)
        v[~hit] *= F(zeta)
        for w in range(x.shape[1]):
            sent = hit[w]
            if not sent.any():
                continue
            if tau:
                old = r[w, sent]
                y[sent] += np.sign(old) * F(tau) / x.shape[1]
                r[w, sent] = old - np.sign(old) * F(tau)
                v[w, sent] = np.maximum(v[w, sent] - 2 * np.abs(old) * F(tau) + F(tau) ** 2, 0)
            else:
                y[sent] += powers_of_two(r[w, sent]) / x.shape[1]
                r[w, sent] = 0
                v[w, sent] = 0
        yield y


def iwp(group, threshold):
    """Every rank broadcasts its mask, so nothing is drawn."""
    x, weight = group["gradient"][...], group["weight"][...]
    a = np.zeros(x.shape[1:], F)
    for s in range(x.shape[0]):
        a += x[s]
        floor = F(1e-3 * np.sqrt(np.mean(weight[s].astype(np.float64) ** 2)) + 1e-8)
        mask = (np.abs(a) / (np.abs(weight[s]) + floor) > threshold).any(axis=0)
        if len(group.attrs["shape"]) < 2:
            mask[:] = True
        yield np.where(mask, a.astype(np.float64).mean(axis=0), 0.0)
        a[:, mask] = 0


def gradiveq(group, lt, lc, taps, variance):
    """Equations 3 to 6 on the mean over ranks, sampled uncompressed: slices of `taps` taps in HWIO order, the basis of the
    first slice for all of them, a mean for each."""
    x, shape = group["gradient"][...].astype(np.float64).mean(axis=1), tuple(group.attrs["shape"])
    if len(shape) != 4 or shape[2] * shape[3] % taps != 0:
        yield from x
        return
    steps, (filters, depth, height, width) = x.shape[0], shape
    slices = x.reshape(steps, filters, depth, height, width).transpose(0, 3, 4, 2, 1).reshape(steps, -1, taps * depth * filters)
    out = slices.copy()
    for start in range(0, steps - lt, lt + lc):
        sample = slices[start:start + lt]
        mean = sample.mean(axis=0)
        centred = sample[:, 0] - mean[0]
        power, vectors = np.linalg.eigh(centred @ centred.T)
        power, vectors = np.maximum(power[::-1], 0), vectors[:, ::-1]
        d = min(int(np.searchsorted(np.cumsum(power) / power.sum(), 1 - variance) + 1), lt - 1)
        basis = centred.T @ vectors[:, :d] / np.sqrt(power[:d])
        for step in range(start + lt, min(steps, start + lt + lc)):
            out[step] = (slices[step] - mean) @ basis @ basis.T + mean
    yield from out.reshape(steps, height, width, depth, filters).transpose(0, 4, 3, 1, 2).reshape(steps, -1)


def check(capture, folder, spec, method):
    result = folder / "result.h5"
    result.unlink(missing_ok=True)
    subprocess.run([GRADTOOL, "bench", str(capture), "--codec", spec, "--timing", "isolated", "--granularity", "tensor", "-n", "1", "--reconstruction",
                    str(result), "--csv", str(folder / "table.csv")],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    moved = 0
    with h5py.File(capture) as source, h5py.File(result) as got:
        results = {tensor.attrs["name"]: tensor["gradient"] for tensor in got["tensors"].values()}
        for group in source["tensors"].values():
            for step, expected in enumerate(method(group)):
                y = results[group.attrs["name"]][step, 0]
                moved += np.count_nonzero(expected)
                off = np.max(np.abs(y - expected))
                assert off <= 1e-6 * max(np.max(np.abs(expected)), 1e-30), \
                    f"{spec}, {group.attrs['name']}, step {step}: off by {off}, {np.sum((y != 0) != (expected != 0))} elements differ"
    assert moved > 0, spec
    print(f"{spec}: {moved} values as in the paper")


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    capture = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else folder / "capture.h5"
    if len(sys.argv) < 3:
        write_capture(capture)
    with h5py.File(capture) as f:
        ranks = int(f.attrs["workers"])
    for alpha in (1, 1.5, 2):
        check(capture, folder, f"vgc:alpha={alpha}", lambda group, alpha=alpha: vgc(group, alpha))
    check(capture, folder, "vgc:alpha=1,tau=0.01", lambda group: vgc(group, 1, 0.01))
    for threshold in (0.05, 1.0):
        check(capture, folder, f"iwp:policy=fixed,threshold={threshold},roots={ranks}",
              lambda group, threshold=threshold: iwp(group, threshold))
    for taps, variance in ((1, 0.01), (3, 0.3)):
        check(capture, folder, f"gradiveq:lt=3,lc=2,slice={taps},lambda={variance},sampling=raw,min_ratio=1",
              lambda group, taps=taps, variance=variance: gradiveq(group, 3, 2, taps, variance))

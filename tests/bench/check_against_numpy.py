"""Replays a synthetic capture through gradtool bench and computes everything again with NumPy: the error columns from
--reconstruction, and what topk (with error feedback), dgc, qsgd (its bound) and fft should have produced.

Usage: check_against_numpy.py GRADTOOL
"""
import csv
import io
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from payloads.common import philox_bits  # noqa: E402

GRADTOOL = sys.argv[1]
RANKS, STEPS, SEED = 3, 4, 1
SHAPES = {"conv.weight": (8, 4, 3, 3), "conv.bias": (8,), "fc.weight": (40, 50), "tiny": (2,)}


def write_capture(path):
    rng = np.random.default_rng(7)
    with h5py.File(path, "w") as f:
        f.attrs.update(dict(format="gradtool.gradients", schema_version=1, complete=1, producer="test", created="2026-01-01T00:00:00Z",
                            model="synthetic", dataset="none", optimizer="sgd", seed=7, workers=RANKS, batch_size=1,
                            micro_batches=1, command="check_against_numpy.py"))
        f["steps/iteration"] = np.arange(STEPS, dtype="i8") + 10
        f["steps/learning_rate"] = 0.1 * 0.25 ** np.arange(STEPS)
        for i, (name, shape) in enumerate(SHAPES.items()):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update(dict(name=name, kind="other", layout=""))
            group.attrs["shape"] = np.array(shape, dtype="i8")
            n = int(np.prod(shape))
            common = rng.standard_normal((STEPS, 1, n)) * np.exp(rng.standard_normal(n))
            group["gradient"] = (1e-3 * (common + rng.standard_normal((STEPS, RANKS, n)))).astype("f4")


def bench(capture, codec, *flags):
    out = os.path.join(os.path.dirname(capture), "reconstruction.h5")
    steps = os.path.join(os.path.dirname(capture), "steps.csv")
    if os.path.exists(out):
        os.remove(out)
    if "--granularity" not in flags:
        flags = ("--granularity", "tensor", *flags)
    text = subprocess.run([GRADTOOL, "bench", capture, "--codec", codec, "--reconstruction", out, "--csv", "-", "--per-tensor",
                           "--steps-csv", steps,
                           "-n", "2", "--threads", "2", *flags], check=True, stdout=subprocess.PIPE, text=True).stdout
    name = codec.split(":")[0]
    rows = [r for r in csv.DictReader(io.StringIO(text)) if r["codec"] == name]
    check_tensors(name, rows)
    rows = [r for r in rows if r["timing"] == "isolated"]
    y = read(out)
    check_steps(steps, name, next(r for r in rows if r["tensor"] == "all"), read(capture), y)
    return {r["tensor"]: r for r in rows}, y


def check_tensors(name, rows):
    """Each tensor once for both timings. A unit's bytes and values are its tensor's, and add up to those of the step."""
    parts = [r for r in rows if r["tensor"] != "all"]
    everything = next(r for r in rows if r["tensor"] == "all")
    assert sorted(r["tensor"] for r in parts) == sorted(SHAPES), (name, [r["tensor"] for r in parts])
    if everything["granularity"] != "tensor":
        assert all(r["payload_bytes"] == "" and "shares a bucket" in r["message"] for r in parts), (name, parts)
        return
    for column in ("payload_bytes", "raw_bytes", "elements"):
        close(f"{name} {column} of the tensors", sum(float(r[column]) for r in parts), float(everything[column]))
    for column in ("wire_bytes_per_rank", "payload_bytes_max"):  # another rank may be first in each tensor
        assert sum(float(r[column]) for r in parts) >= float(everything[column]) * (1 - 1e-12), (name, column)
    for row in rows:
        assert float(row["payload_bytes"]) <= float(row["payload_bytes_max"]), (name, row)
        if float(row["payload_bytes"]) > 0:
            close(f"{name} payload_ratio", row["payload_ratio"], 4 * int(row["elements"]) / float(row["payload_bytes"]))


def check_steps(path, name, everything, x, y):
    """The errors of each step and of the sums so far, of all tensors and of each, from the reconstruction, once for both timings. What steps send
    has the mean that `everything`, the row over all steps, has."""
    with open(path, newline="") as file:
        table = [r for r in csv.DictReader(file) if r["codec"] == name]
    assert all(r["timing"] == "isolated" and r["schema_version"] == "2" and r["seed"] == str(SEED) for r in table), table
    for tensor in [*SHAPES, "all"]:
        names = SHAPES if tensor == "all" else [tensor]
        rows = [r for r in table if r["tensor"] == tensor]
        a = np.concatenate([x[n].mean(axis=1, dtype="f8") for n in names], axis=1)
        b = np.concatenate([y[n][:, 0].astype("f8") for n in names], axis=1)
        assert len(rows) == len(a), (name, tensor, len(rows))
        for step, row in enumerate(rows):
            far, near = a[:step + 1].sum(axis=0), b[:step + 1].sum(axis=0)
            close(f"{name} {tensor} step {step} nmse", row["nmse"], ((a[step] - b[step]) ** 2).sum() / (a[step] ** 2).sum())
            close(f"{name} {tensor} step {step} cumulative_nmse", row["cumulative_nmse"], ((far - near) ** 2).sum() / (far ** 2).sum())
    whole = [r for r in table if r["tensor"] == "all"]
    for column in ("payload_bytes", "wire_bytes_per_rank"):
        close(f"{name} {column} of the steps", np.mean([float(r[column]) for r in whole]), float(everything[column]))
    assert all(bool(r["residual_ratio"]) == bool(everything["residual_ratio"]) for r in whole), (name, whole)
    assert not any(r["payload_bytes"] or r["residual_ratio"] for r in table if r["tensor"] != "all"), (name, table)
    if everything["residual_ratio"]:
        weights = [(x[n][:, 0].astype("f8") ** 2).sum(axis=1) for n in SHAPES]
        kept = sum(float(r["residual_ratio"]) ** 2 * w for r, w in zip(whole, np.sum(weights, axis=0)))
        close(f"{name} residual_ratio of the steps", math.sqrt(kept / np.sum(weights)), float(everything["residual_ratio"]))


def read(path):
    with h5py.File(path, "r") as f:
        return {g.attrs["name"] if isinstance(g.attrs["name"], str) else g.attrs["name"].decode(): g["gradient"][...]
                for g in f["tensors"].values()}


def close(what, got, expected, tolerance=1e-6):
    got = float(got) if got != "" else math.nan
    if math.isnan(expected) and math.isnan(got):
        return
    assert abs(got - expected) <= tolerance * max(abs(expected), 1e-300), f"{what}: {got} in the table, {expected} by NumPy"


def check_errors(codec, rows, x, y):
    """The error columns, from the reconstruction, tensor by tensor and pooled."""
    for tensor in [*SHAPES, "all"]:
        names = SHAPES if tensor == "all" else [tensor]
        a = np.concatenate([x[n].mean(axis=1, dtype="f8").ravel() for n in names])
        b = np.concatenate([y[n][:, 0].astype("f8").ravel() for n in names])
        sa = np.concatenate([x[n].mean(axis=1, dtype="f8").sum(axis=0) for n in names])
        sb = np.concatenate([y[n][:, 0].astype("f8").sum(axis=0) for n in names])
        row = rows[tensor]
        where = f"{codec} {tensor} "
        nmse = ((a - b) ** 2).sum() / (a ** 2).sum()
        close(where + "nmse", row["nmse"], nmse)
        close(where + "snr_db", row["snr_db"], -10 * math.log10(nmse))
        close(where + "cosine", row["cosine"], a @ b / math.sqrt((a @ a) * (b @ b)) if b.any() else math.nan)
        close(where + "max_abs_error", row["max_abs_error"], np.abs(a - b).max())
        close(where + "relative_bias", row["relative_bias"], a @ b / (a @ a) - 1, 1e-5)
        close(where + "zeroed_fraction", row["zeroed_fraction"], ((b == 0) & (a != 0)).mean())
        close(where + "sign_agreement", row["sign_agreement"], (np.sign(a) == np.sign(b))[b != 0].mean() if b.any() else math.nan)
        close(where + "nrmse", row["nrmse"], math.sqrt(((a - b) ** 2).mean()) / (a.max() - a.min()))
        close(where + "cumulative_nmse", row["cumulative_nmse"], ((sa - sb) ** 2).sum() / (sa ** 2).sum())


def topk_mean(x, ratio):
    """Exact top-k of gradient + residual on every rank; the mean of what was sent."""
    out = np.zeros((STEPS, x.shape[2]))
    n = x.shape[2]
    k = max(1, min(n, int(math.floor(ratio * n + 0.5))))
    residual = np.zeros((RANKS, n), dtype="f4")
    for step in range(STEPS):
        for rank in range(RANKS):
            u = residual[rank] + x[step, rank]
            keep = np.sort(np.argsort(-np.abs(u), kind="stable")[:k])
            out[step, keep] += u[keep].astype("f8") / RANKS
            residual[rank] = u
            residual[rank, keep] = 0
    return out


def dgc_mean(x, ratio, unit, over):
    """Deep gradient compression without momentum, by its page: the threshold of a strided sample, corrected, and what reaches it."""
    steps, ranks, n = x.shape
    k = min(max(1, math.floor(ratio * n + 0.5)), n)
    stride = max(1, n // int(min(max(max(0.01 * n, 2 / ratio), 1), n)))
    out, v = np.zeros((steps, n)), np.zeros((ranks, n), "f4")
    for step in range(steps):
        for rank in range(ranks):
            v[rank] += x[step, rank]
            a = np.abs(v[rank])
            first = int(philox_bits(SEED, step, rank, unit, 1)[0]) % stride
            sample = np.sort(a[first::stride])[::-1]
            threshold = np.float32(sample[min(max(math.ceil(ratio * len(sample)), 1), len(sample)) - 1]) if k < n else np.float32(0)
            threshold = max(threshold, np.float32(2.0 ** -149))
            reach = lambda t: int((a >= t).sum())  # noqa: E731
            for _ in range(10):
                if 5 * reach(threshold) < 4 * k:
                    threshold = max(threshold * np.float32(0.8), np.float32(2.0 ** -149))
                elif over == "scale" and 10 * reach(threshold) > 13 * k and 5 * reach(threshold * np.float32(1.3)) >= 4 * k:
                    threshold = threshold * np.float32(1.3)
                else:
                    break
            keep = np.flatnonzero(a >= threshold)
            keep = keep[np.argsort(-a[keep], kind="stable")[:k]]
            out[step, keep] += v[rank, keep].astype("f8") / ranks
            v[rank, keep] = 0
    return out


def range_float(values, bits, mantissa, nearest):
    """The N-bit range-based float for +-1, by table look-up instead of bit arithmetic."""
    s = 23 - mantissa
    top = int(np.array(1, "f4").view("u4")) >> s
    base = -((-(2 * top - 2 ** bits + 3)) // 2)
    positives = top - base + 1
    negatives = 2 ** bits - 1 - positives
    table = ((np.arange(max(positives, negatives), dtype="u4") + base) << s).astype("u4").view("f4")
    a = np.abs(values).astype("f4")
    if nearest:
        a = (a.view("u4") + np.uint32(1 << (s - 1))).view("f4")
    j = np.searchsorted(table, a, side="right")  # how many codes are not above |v|
    j = np.where(values < 0, np.minimum(j, negatives), np.minimum(j, positives))
    return np.where(j == 0, 0.0, np.sign(values) * table[np.maximum(j, 1) - 1])


def fft_one(x, theta, bits, nearest):
    n = len(x)
    if n < 4:
        return x.astype("f8")
    spectrum = np.fft.rfft(x.astype("f8")) / math.sqrt(n)
    bins = len(spectrum)
    kept = int(math.floor((1 - theta) * bins + 0.5))
    keep = np.argsort(-np.abs(spectrum), kind="stable")[:kept]
    sparse = np.zeros_like(spectrum)
    parts = np.stack([spectrum[keep].real, spectrum[keep].imag])
    if bits == 32:
        sparse[keep] = spectrum[keep]
    else:
        scale = np.abs(parts).max()
        q = range_float(parts / scale, bits, bits - 4, nearest) * scale
        sparse[keep] = q[0] + 1j * q[1]
    return np.fft.irfft(sparse, n) * math.sqrt(n)


def main():
    with tempfile.TemporaryDirectory() as folder:
        capture = os.path.join(folder, "capture.h5")
        write_capture(capture)
        x = read(capture)

        for codec in ("none", "noop", "fp16", "topk:ratio=0.1", "topk:ratio=0.02,ef=off", "qsgd:bits=4", "qsgd:bits=3,norm=l2,bucket=64",
                      "fft", "fft:theta=0.5,rounding=nearest,bits=8"):
            rows, y = bench(capture, codec)
            check_errors(codec, rows, x, y)
        for flags in (["--granularity", "model"], ["--granularity", "bucket:4KB"], ["--reduce", "hop"], ["--reduce", "gather"]):
            rows, y = bench(capture, "qsgd:bits=5", *flags)
            check_errors("qsgd " + " ".join(flags), rows, x, y)

        rows, y = bench(capture, "topk:ratio=0.1")
        for name in SHAPES:
            expected = topk_mean(x[name], 0.1)
            assert np.allclose(y[name][:, 0], expected, rtol=1e-6, atol=1e-9), f"topk {name} differs from NumPy"
            assert ((y[name][:, 0] != 0) == (expected != 0)).all(), f"topk {name}: other elements were kept"

        for ratio, over in ((0.1, "topk"), (0.02, "topk"), (0.05, "scale")):
            rows, y = bench(capture, f"dgc:momentum=0,ratio={ratio},over={over}")
            for unit, name in enumerate(SHAPES):
                expected = dgc_mean(x[name], ratio, unit, over)
                assert np.allclose(y[name][:, 0], expected, rtol=1e-6, atol=1e-9), f"dgc {name} differs from NumPy"
                assert ((y[name][:, 0] != 0) == (expected != 0)).all(), f"dgc {name}: other elements were kept"

        rows, y = bench(capture, "qsgd:bits=4,bucket=512")
        for name in SHAPES:
            n = x[name].shape[2]
            level = np.zeros(x[name].shape)
            for first in range(0, n, 512):
                part = np.abs(x[name][:, :, first:first + 512]).max(axis=2, keepdims=True)
                level[:, :, first:first + 512] = part / 7
            off = np.abs(y[name][:, 0] - x[name].mean(axis=1, dtype="f8"))
            assert (off <= level.mean(axis=1) * (1 + 1e-5)).all(), f"qsgd {name}: an element moved by more than a level"
            # Each rank's value is a whole number of levels: so is p times the mean where all ranks share a level.
        elements = sum(int(np.prod(s)) for s in SHAPES.values())
        payload = sum(4 * -(-int(np.prod(s)) // 512) + 4 * -(-int(np.prod(s)) * 4 // 32) for s in SHAPES.values())
        assert int(rows["all"]["payload_bytes"]) == payload
        assert int(rows["all"]["wire_bytes_per_rank"]) == (RANKS - 1) * payload, "an all-gather sends p-1 parts"
        close("payload_ratio", rows["all"]["payload_ratio"], 4 * elements / payload)
        close("wire_ratio", rows["all"]["wire_ratio"], 2 * (RANKS - 1) / RANKS * 4 * elements / ((RANKS - 1) * payload))

        for spec, theta, bits, nearest in (("fft:theta=0.5,bits=32", 0.5, 32, False), ("fft", 0.85, 10, False),
                                           ("fft:theta=0.7,bits=8,rounding=nearest", 0.7, 8, True)):
            rows, y = bench(capture, spec)
            for name in SHAPES:
                expected = np.mean([[fft_one(x[name][s, r], theta, bits, nearest) for r in range(RANKS)] for s in range(STEPS)], axis=1)
                scale = np.abs(expected).max()
                off = np.abs(y[name][:, 0] - expected)
                # A component on the border of two codes may fall either way in float32 and float64: a code is 2^-m of it.
                allowed = 2e-6 * scale if bits == 32 else 2e-2 * scale
                assert off.max() <= allowed, f"{spec} {name}: off by {off.max() / scale:.2e} of the largest"
                assert np.sqrt((off ** 2).mean()) <= 2e-3 * scale, f"{spec} {name}: rms {np.sqrt((off ** 2).mean()) / scale:.2e}"
    print("all columns and reconstructions agree with NumPy")


if __name__ == "__main__":
    main()

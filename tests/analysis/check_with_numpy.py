"""Recomputes every table of `gradtool analyze` with NumPy and SciPy from a file written with h5py, and compares."""

import csv
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np

try:
    import scipy.stats
except ImportError:
    print("SciPy is missing")
    sys.exit(77)

GRADTOOL = sys.argv[1]
STEPS, WORKERS, MICRO = 9, 3, 4
TOLERANCE = 1e-6
FRACTIONS = (0.01, 0.05, 0.10, 0.15, 0.25)
checked = 0


def tensors():
    rng = np.random.default_rng(7)
    smooth = np.convolve(rng.standard_normal(7001), np.ones(6) / 6, "same")
    shapes = [
        ("conv", (12, 10, 3, 3), "conv", "OIHW", "f4"),
        ("conv5", (6, 4, 5, 5), "conv", "OIHW", "f2"),
        ("conv1x1", (40, 30, 1, 1), "conv", "OIHW", "f4"),
        ("linear", (71, 137), "linear", "OI", "f4"),
        ("prime", (7001,), "other", "", "f4"),
        ("heavy", (90, 50), "embedding", "OI", "bf16"),
        ("tiny", (3,), "bias", "", "f4"),
        ("pair", (2,), "bias", "", "f4"),
        ("single", (1,), "bias", "", "f4"),
    ]
    for name, shape, kind, layout, dtype in shapes:
        n = int(np.prod(shape))
        micro = rng.standard_normal((STEPS, WORKERS, MICRO, n)) + 0.7 * rng.standard_normal(n)
        if name == "prime":
            micro += 4 * smooth
        if name == "heavy":
            micro = micro**3 * (rng.random(n) < 0.8)
        if name == "linear":
            micro += rng.standard_normal((STEPS, 1, 1, 2)) @ (3 * rng.standard_normal((2, n)))
        yield name, shape, kind, layout, dtype, (micro * 1e-2 + (1e-3 if kind == "bias" else 0))


def store(dtype, values):
    """The stored array, and what a reader must see."""
    if dtype == "bf16":
        bits = values.astype("f4").view("u4")
        stored = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("u2")
        return stored, (stored.astype("u4") << 16).view("f4").astype("f8")
    stored = values.astype(dtype)
    return stored, stored.astype("f8")


def write(path):
    seen = {}
    with h5py.File(path, "w") as f:
        f.attrs.update({"format": "gradtool.gradients", "schema_version": 1, "complete": 1, "producer": "numpy",
                        "created": "2024-01-01T00:00:00Z", "model": "made up", "dataset": "noise", "optimizer": "sgd",
                        "seed": 7, "workers": WORKERS, "batch_size": 8, "micro_batches": MICRO, "command": "none"})
        f["steps/iteration"] = np.arange(STEPS, dtype="i8") * 5
        for i, (name, shape, kind, layout, dtype, micro) in enumerate(tensors()):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update({"name": name, "shape": np.array(shape, "i8"), "kind": kind, "layout": layout})
            stored, gradient = store(dtype, micro.mean(axis=2))
            data = group.create_dataset("gradient", data=stored, chunks=(1, 1, min(stored.shape[2], 1000)),
                                        maxshape=(None, *stored.shape[1:]))
            if dtype == "bf16":
                data.attrs["dtype"] = "bfloat16"
            moment = None
            if name in ("conv", "prime", "pair"):
                raw = ((micro / MICRO) ** 2).sum(axis=2).astype("f4")
                group.create_dataset("second_moment", data=raw, chunks=(1, 1, min(raw.shape[2], 1000)),
                                     maxshape=(None, *raw.shape[1:]))
                moment = raw.astype("f8")
            seen[name] = {"g": gradient, "v": moment, "shape": shape, "kind": kind}
    return seen


def near(where, got, wanted, tolerance=TOLERANCE, floor=1e-9):
    global checked
    checked += 1
    if wanted is None:
        assert got == "", f"{where}: {got} should be empty"
        return
    assert got != "", f"{where}: empty, should be {wanted}"
    assert abs(float(got) - wanted) <= tolerance * max(abs(wanted), floor), f"{where}: {got}, NumPy says {wanted}"


def ratio(a, b):
    return a / b if b else None


def top_energy(magnitudes, weights, fraction):
    count = int(np.floor(fraction * len(magnitudes) + 0.5))
    order = np.argsort(-magnitudes, kind="stable")[:count]
    return (weights[order] * magnitudes[order] ** 2).sum()


def spectrum(g):
    out = dict.fromkeys(["energy", "flat", "flat_n", "lag", "centred"], 0.0)
    out["raw"], out["fft"], out["bands"] = np.zeros(5), np.zeros(5), np.zeros(16)
    for x in g.reshape(-1, g.shape[-1]):
        n = len(x)
        magnitude = np.abs(np.fft.rfft(x, norm="ortho"))
        k = np.arange(len(magnitude))
        weight = np.where((k == 0) | (2 * k == n), 1.0, 2.0)
        out["energy"] += (x**2).sum()
        out["raw"] += [top_energy(np.abs(x), np.ones(n), f) for f in FRACTIONS]
        out["fft"] += [top_energy(magnitude, weight, f) for f in FRACTIONS]
        band = np.minimum(15, 32 * k // n)
        out["bands"] += np.bincount(band, weight * magnitude**2, minlength=16)
        inner = magnitude[(k > 0) & (2 * k < n)] ** 2
        if len(inner):
            out["flat"] += n * np.exp(np.log(inner).mean()) / inner.mean()
            out["flat_n"] += n
        if n > 1:
            d = x - x.mean()
            out["lag"] += (d[1:] * d[:-1]).sum()
            out["centred"] += (d**2).sum()
    return out


def check_spectrum(rows, bands, seen):
    total = None
    sums = {name: spectrum(t["g"]) for name, t in seen.items()}
    for s in sums.values():
        total = {k: (0 if total is None else total[k]) + s[k] for k in s}
    sums["all"] = total
    assert [r["tensor"] for r in rows] == list(sums)
    for row in rows:
        s = sums[row["tensor"]]
        for i, f in enumerate(FRACTIONS):
            for kind in ("raw", "fft"):
                column = f"{kind}_share_{round(100 * f):02d}"
                near(f"{row['tensor']} {column}", row[column], ratio(s[kind][i], s["energy"]))
        raw, fft = s["raw"][3] / s["energy"], s["fft"][3] / s["energy"]
        if row["fft_advantage_15_db"]:
            near("advantage", row["fft_advantage_15_db"], 10 * np.log10((1 - raw) / (1 - fft)))
        near("flatness", row["flatness"], ratio(s["flat"], s["flat_n"]))
        near("lag1", row["lag1_autocorrelation"], ratio(s["lag"], s["centred"]))
    for row in bands:
        s = sums[row["tensor"]]
        near("band", row["energy_share"], s["bands"][int(row["band"])] / s["energy"], floor=1e-6)


def slices(t):
    g = t["g"].mean(axis=1)
    n = g.shape[1]
    if t["kind"] == "conv":
        o, i, h, w = t["shape"]
        hwio = g.reshape(-1, o, i, h, w).transpose(0, 3, 4, 2, 1).reshape(len(g), n)
        k = w * i * o
        return k, [hwio[:, a:a + k] for a in range(0, n, k)]
    k = min(n, max(4096, -(-n // 16)))
    return k, [g[:, a:a + k] for a in range(0, n, k)]


def holdout(x):
    train, test = x[:len(x) // 2], x[len(x) // 2:]
    mu = train.mean(axis=0)
    _, s, vt = np.linalg.svd(train - mu, full_matrices=False)
    s = np.where(s**2 > 1e-14 * s[0]**2, s, 0)
    d = 0 if not s.any() else int(np.searchsorted(np.cumsum(s**2), 0.99 * (s**2).sum()) + 1)
    rest = test - mu
    rest = rest - (rest @ vt[:d].T) @ vt[:d]
    return (rest**2).sum(), (test**2).sum()


def pearsons(g):
    def corr(a, b):
        return np.corrcoef(a, b)[0, 1]
    if g.shape[-1] < 2:
        return None, None, None, None
    pairs = [[corr(s[a], s[b]) for a in range(WORKERS) for b in range(a)] for s in g]
    m = g.mean(axis=1)
    return (np.mean(pairs), np.mean([min(p) for p in pairs]),
            np.mean([corr(m[i], m[i + 1]) for i in range(len(m) - 1)]),
            np.mean([corr(g[i, w], g[i + 1, w]) for i in range(len(g) - 1) for w in range(WORKERS)]))


def check_correlation(rows, eigenvalues, seen):
    listed = {}
    for row in eigenvalues:
        listed.setdefault((row["tensor"], int(row["slice"])), []).append(row)
    joined = np.concatenate([t["g"] for t in seen.values()], axis=2)
    totals = np.zeros(11)
    for row in rows:
        name = row["tensor"]
        wanted = pearsons(joined if name == "all" else seen[name]["g"])
        for column, value in zip(("worker_pearson_mean", "worker_pearson_min", "step_pearson_mean_gradient",
                                  "step_pearson_per_worker"), wanted):
            near(f"{name} {column}", row[column], value, floor=1e-3)
        if name == "all":
            sums, count = totals, totals[10]
        else:
            k, parts = slices(seen[name])
            assert int(row["slice_elements"]) == k and int(row["slices"]) == len(parts), name
            sums, count = np.zeros(11), len(parts)
            for number, x in enumerate(parts):
                values = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)**2 / (STEPS - 1)
                values = values[:min(x.shape[1], STEPS - 1)]
                cumulative = np.cumsum(values) / values.sum()
                got = listed[name, number]
                assert len(got) == len(values), (name, number)
                for i, line in enumerate(got):
                    near(f"{name} eigenvalue", line["eigenvalue"], values[i], floor=values[0] * 1e-3)
                    near(f"{name} cumulative", line["cumulative_share"], cumulative[i])
                p = values / values.sum()
                left = holdout(x)
                sums += [*(values[:c].sum() for c in (1, 2, 4, 8)), np.exp(-(p * np.log(p)).sum()),
                         np.searchsorted(cumulative, 0.99) + 1, len(values), left[0], left[1], values.sum(), 1]
            totals += sums
        for i, c in enumerate((1, 2, 4, 8)):
            near(f"{name} explained", row[f"explained_{c}"], sums[i] / sums[9])
        near(f"{name} rank", row["effective_rank"], sums[4] / count)
        near(f"{name} d", row["components_99"], sums[5] / count)
        near(f"{name} limit", row["components_limit"], sums[6] / count)
        near(f"{name} holdout", row["holdout_nmse"], sums[7] / sums[8], floor=1e-6)


def check_variance(rows, seen):
    everything, pooled = [], {"ratio": [], "passed": np.zeros(3), "samples": 0, "undefined": 0}
    for row in rows:
        name = row["tensor"]
        if name != "all":
            g, v = seen[name]["g"], seen[name]["v"]
            if v is not None:
                assert row["source"] == "second_moment"
                mean2, variance = g**2, np.maximum(0, (MICRO * v - g**2) / (MICRO - 1))
                passed = np.array([(g**2 > a * v).sum() for a in (1, 1.5, 2)])
            else:
                assert row["source"] == "workers"
                mean2, variance = g.mean(axis=1)**2, g.var(axis=1, ddof=1) / WORKERS
                passed = np.array([(mean2 > a * variance).sum() for a in (1, 1.5, 2)])
            empty = (mean2 == 0) & (variance == 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = (mean2 / variance)[~empty]
            samples, undefined, values, tensor_count = mean2.size, empty.sum(), g.ravel(), 1
            everything.append(values)
            pooled["ratio"].append(ratios)
            pooled["passed"] += passed
            pooled["samples"] += samples
            pooled["undefined"] += undefined
        else:
            values, ratios = np.concatenate(everything), np.concatenate(pooled["ratio"])
            passed, samples, undefined = pooled["passed"], pooled["samples"], pooled["undefined"]
        ratios = np.sort(ratios)
        for q in (5, 25, 50, 75, 95):
            rank = int(np.ceil(q / 100 * len(ratios)))
            near(f"{name} q{q}", row[f"ratio_q{q:02d}"], ratios[rank - 1], tolerance=1.3e-4)
        for i, a in enumerate(("1", "1_5", "2")):
            near(f"{name} pass {a}", row[f"pass_share_{a}"], passed[i] / samples, tolerance=1e-12)
        near(f"{name} undefined", row["undefined_share"], undefined / samples)
        near(f"{name} inconsistent", row["inconsistent_share"], 0.0)
        if name != "all":
            df = (MICRO if row["source"] == "second_moment" else WORKERS) - 1
            near(f"{name} noise", row["noise_pass_share_1"], 2 * scipy.stats.t.sf(1, df))
        assert int(row["values"]) == values.size
        near(f"{name} mean", row["mean"], values.mean(), floor=values.std())
        near(f"{name} std", row["std"], values.std())
        near(f"{name} skew", row["skewness"], scipy.stats.skew(values), floor=1e-3)
        near(f"{name} kurtosis", row["excess_kurtosis"], scipy.stats.kurtosis(values), floor=1e-3)
        near(f"{name} min", row["min"], values.min())
        near(f"{name} max", row["max"], values.max())
        near(f"{name} l1", row["l1_norm_mean"], np.abs(values).sum() / STEPS / WORKERS)
        near(f"{name} l2", row["l2_norm_rms"], np.sqrt((values**2).sum() / STEPS / WORKERS))
        near(f"{name} zeros", row["zero_fraction"], (values == 0).mean())


def check_interval(name, row, signal, noise):
    """The ends are the ratios of which a t-test of noise - ratio * signal over the steps is at its 5 % limit; beyond a missing end it is not."""
    limit = scipy.stats.t.ppf(0.975, STEPS - 1)

    def statistic(ratio):
        rest = noise - ratio * signal
        return rest.mean() / rest.std(ddof=1) * np.sqrt(STEPS)

    low, high = row["noise_scale_low"], row["noise_scale_high"]
    if float(low) > 0:
        near(f"{name} low", statistic(float(low)), limit, tolerance=1e-5)
    else:
        assert statistic(0.0) <= limit, (name, low)
    if high:
        near(f"{name} high", statistic(float(high)), -limit, tolerance=1e-5)
        assert float(low) <= noise.mean() / signal.mean() <= float(high), (name, row)
    else:
        assert statistic(1e12 * noise.mean() / np.abs(signal).max()) > -limit, (name, "the signal can be told from 0")


def check_noise(rows, steps, seen):
    """McCandlish et al. 2018, A.1: from single batches and from the mean of all workers' batches."""
    total = np.zeros((STEPS, 2))
    by_step = {(row["tensor"], int(row["step"])): row for row in steps}
    for row in rows:
        name = row["tensor"]
        if name != "all":
            g = seen[name]["g"].astype(float)
            small, big = (g**2).sum(axis=2).mean(axis=1), (g.mean(axis=1)**2).sum(axis=1)
            signal = (WORKERS * big - small) / (WORKERS - 1)
            noise = (small - big) / (1 - 1 / WORKERS)
            total += np.stack([signal, noise], axis=1)
        else:
            signal, noise = total.T
        near(f"{name} signal", row["signal"], signal.mean(), floor=noise.mean() * 1e-6)
        near(f"{name} trace", row["noise"], noise.mean())
        if signal.mean() > 0:
            near(f"{name} scale", row["noise_scale"], noise.mean() / signal.mean())
        check_interval(name, row, signal, noise)
        for step in range(STEPS):
            one = by_step[name, step]
            near(f"{name} {step} signal", one["signal"], signal[step], floor=noise[step] * 1e-6)
            assert (one["noise_scale"] != "") == (signal[step] > 0), (name, step)
            if signal[step] > 0:
                near(f"{name} {step} scale", one["noise_scale"], noise[step] / signal[step])
    assert len(by_step) == len(steps) == len(rows) * STEPS


with tempfile.TemporaryDirectory() as folder:
    path, out = os.path.join(folder, "made.h5"), os.path.join(folder, "out")
    known = write(path)
    subprocess.run([GRADTOOL, "analyze", path, "--out", out], check=True, stdout=subprocess.DEVNULL)

    def load(name):
        with open(os.path.join(out, name + ".csv"), newline="") as f:
            return list(csv.DictReader(f))

    if load("spectrum")[0]["status"] == "ok":
        check_spectrum(load("spectrum"), load("spectrum_bands"), known)
    check_correlation(load("correlation"), load("eigenvalues"), known)
    check_variance(load("variance"), known)
    check_noise(load("noise"), load("noise_steps"), known)
print(f"{checked} numbers agree with NumPy")

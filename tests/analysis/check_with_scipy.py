"""Recomputes the tables of `gradtool analyze` that explain gradients, with NumPy and SciPy, and compares.

The definitions are those of docs/analysis.md. Captures: the real one of a language model in datasets, and three small ones that are made
here, whose shapes, zeros, second moments and weights reach the cases that the real one does not.

Usage: check_with_scipy.py GRADTOOL SOURCE_DIR
"""

import csv
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are too small for more

import numpy as np

try:
    import h5py
    import scipy.fft
    import scipy.linalg
    import scipy.optimize
    import scipy.signal
    import scipy.special
    import scipy.stats
except ImportError as missing:
    print(f"{missing.name} is missing")
    sys.exit(77)

GRADTOOL, SOURCE = sys.argv[1:3]
TOLERANCE = 1e-6
SHARES = (0.01, 0.05, 0.10, 0.15, 0.25)
BASES = ("identity", "dft", "dct", "hadamard", "haar")
PIECE = 2**18
HADAMARD = {2**i: scipy.linalg.hadamard(2**i) for i in range(7)}
compared, deviations = 0, []
np.seterr(divide="ignore", invalid="ignore")


# Captures

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


def read(path):
    """The tensors of a capture, as float64."""
    tensors = []
    with h5py.File(path) as f:
        for number in sorted(f["tensors"], key=int):
            group = f["tensors"][number]
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


# Comparing

def near(where, got, wanted, tolerance=TOLERANCE, floor=1e-12):
    global compared
    compared += 1
    if wanted is None or got == "":
        good = wanted is None and got == ""
    elif isinstance(wanted, str):
        good = got == wanted
    elif np.isinf(wanted):
        good = float(got) == wanted
    else:
        good = abs(float(got) - wanted) <= tolerance * max(abs(wanted), floor)
    if not good:
        deviations.append(f"{where}: the program says {got or 'nothing'}, SciPy {'nothing' if wanted is None else wanted}")


def compare(table, rows, keys, wanted, tolerance=TOLERANCE, floors=None):
    """Compares rows with a dictionary from the texts of their key columns to dictionaries of columns; neither may have more rows."""
    got = {tuple(row[key] for key in keys): row for row in rows}
    if len(got) != len(rows):
        deviations.append(f"{table}: rows with the same {keys}")
    for key in sorted(wanted.keys() - got.keys()):
        deviations.append(f"{table} {key}: the program has no such row")
    for key in sorted(got.keys() - wanted.keys()):
        deviations.append(f"{table} {key}: a row that should not be there")
    for key in sorted(wanted.keys() & got.keys()):
        for column, value in wanted[key].items():
            near(f"{table} {key} {column}", got[key][column], value, tolerance, (floors or {}).get(column, 1e-12))


def number(value):
    return f"{value:.15g}"


def ratio(a, b):
    return a / b if b else None


def pooled(tensors, sums_of, kinds):
    """Sums of each tensor, of `all`, and where wanted of the tensors of a kind, by name and kind. Sums are dictionaries of arrays."""
    result = {}
    for t in tensors:
        if not t["finite"]:
            continue
        sums = sums_of(t)
        result[t["name"], t["kind"]] = sums
        for group in [("all", "")] + ([("all", t["kind"])] if kinds else []):
            total = result.setdefault(group, {})
            for key, value in sums.items():
                total[key] = total.get(key, 0) + value
    return result


def done(rows):
    """Those of tensors that were not skipped."""
    return [row for row in rows if row["status"] != "skipped"]


def evenly(total, count):
    """Positions of at most `count` of `total` things, evenly spaced, the first and the last among them."""
    return list(range(total)) if total <= count else [i * (total - 1) // (count - 1) for i in range(count)]


def windows(iteration):
    """For each captured step, how many gaps lie before it: distances above the smallest one."""
    distance = np.diff(iteration)
    return np.concatenate([[0], np.cumsum(distance > distance.min())]) if len(distance) else np.zeros(1, int)


def rounded(value):
    return int(np.floor(value + 0.5))


def pieces(x):
    """Equal pieces, but for one element, of at most 2^18 elements."""
    count = -(-len(x) // PIECE)
    borders = [i * len(x) // count for i in range(count + 1)]
    return [x[borders[i]:borders[i + 1]] for i in evenly(count, 16)]


def nearest_rank(ordered, q):
    return ordered[max(0, int(np.ceil(q * len(ordered) - 1e-9)) - 1)]


# Transforms: transforms, compaction, spectra, autocorrelation, fft_errors, spectrum_steps

def powers_of_two(x):
    start = 0
    for bit in reversed(range(len(x).bit_length())):
        if len(x) >> bit & 1:
            yield x[start:start + 2**bit]
            start += 2**bit


def hadamard(x):
    """Transforms a power of two of numbers: a Hadamard matrix of a product of lengths is the Kronecker product of those of the lengths."""
    n, done = len(x), 1
    while done < n:
        side = min(n // done, 64)
        x = HADAMARD[side] / np.sqrt(side) @ x.reshape(-1, side, done)
        done *= side
    return x.ravel()


def haar(x):
    details = []
    while len(x) > 1:
        details.append((x[0::2] - x[1::2]) / np.sqrt(2))
        x = (x[0::2] + x[1::2]) / np.sqrt(2)
    return np.concatenate([x, *details])


def spectrum(x):
    """Powers of the frequencies from 0 on, conjugate ones included."""
    power = np.abs(scipy.fft.rfft(x, norm="ortho")) ** 2
    k = np.arange(len(power))
    return power, np.where((k == 0) | (2 * k == len(x)), 1.0, 2.0)


def strongest(energies):
    """Energies in the strongest coefficients, given those of all in descending order, and at last the energy of all."""
    held = np.concatenate([[0], np.cumsum(energies)])
    return np.array([held[rounded(share * len(energies))] for share in SHARES] + [held[-1]])


def descending(basis, x):
    """Energies of the coefficients, the strongest first; a frequency's holds that of its conjugate."""
    if basis == "dft":
        power, weight = spectrum(x)
        order = np.argsort(-power)
        return power[order] * weight[order]
    if basis == "dct":
        x = scipy.fft.dct(x, norm="ortho")
    elif basis in ("hadamard", "haar"):
        x = np.concatenate([{"hadamard": hadamard, "haar": haar}[basis](part) for part in powers_of_two(x)])
    return np.sort(x**2)[::-1]


def orders(t, x):
    """A gradient in each order, in pieces."""
    yield "native", pieces(x)
    if t["kind"] == "conv" and len(t["shape"]) == 4:
        yield "HWIO", pieces(x.reshape(t["shape"]).transpose(2, 3, 1, 0).ravel())
    yield "sorted", [np.sort(piece) for piece in pieces(x)]


def entropy_share(x):
    """Entropy of the shares of the full spectrum's power above frequency 0, over that of equal shares."""
    power = np.abs(np.fft.fft(x)) ** 2
    # A constant gradient leaves rounding alone, at 1e-32 of the energy. Below four elements there are not two frequencies.
    if len(x) < 4 or not power[1:].sum() > 1e-24 * power[0]:
        return None
    return scipy.stats.entropy(power[1:]) / np.log(len(x) - 1)


def errors_without(method, x):
    """Absolute errors where a share theta of the frequencies, or of the values, is dropped, for each theta."""
    transformed = scipy.fft.rfft(x, norm="ortho") if method == "fft" else x
    order = np.argsort(-np.abs(transformed), kind="stable")
    for theta in (0.5, 0.85, 0.99):
        left = transformed.copy()
        left[order[:rounded((1 - theta) * len(order))]] = 0
        yield theta, np.abs(scipy.fft.irfft(left, len(x), norm="ortho") if method == "fft" else left)


def add(sums, key, *values):
    sums[key] = sums.get(key, 0) + np.array(values, dtype=float)


def order_sums(sums, order, x):
    for basis in BASES:
        add(sums, ("compaction", order, basis), *strongest(descending(basis, x)))
    power, weight = spectrum(x)
    band = np.minimum(15, 32 * np.arange(len(power)) // len(x))
    add(sums, ("periodogram", order), *np.bincount(band, power * weight, minlength=16))
    if len(x) >= 64:
        add(sums, ("welch", order), *scipy.signal.welch(x, nperseg=64)[1])
    d = x - x.mean()
    for lag in range(1, 17):
        # The correlation is undefined if no elements are so far apart.
        add(sums, ("lag", order, lag), (d[lag:] * d[:-lag]).sum(), (d**2).sum(), max(0, len(x) - lag))


def error_sums(sums, x):
    energy = (x**2).sum()
    rms = np.sqrt(energy / len(x))
    for method in ("fft", "topk"):
        for theta, errors in errors_without(method, x):
            errors.sort()
            for q in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1):
                value = nearest_rank(errors, q) / rms if rms else 0
                add(sums, ("error", method, theta, q), (errors**2).sum(), energy, len(x) * value, len(x) * (rms > 0))


def step_sums(sums, step, x):
    power, weight = spectrum(x)
    entropy = entropy_share(x)
    low = (power * weight)[32 * np.arange(len(power)) // len(x) < 4].sum()
    add(sums, ("step", step), low, strongest(descending("dft", x))[3], strongest(descending("identity", x))[3], (x**2).sum(),
        len(x) * (entropy or 0), len(x) * (entropy is not None))


def transform_sums(t, steps):
    sums = {}
    for step in steps:
        for x in t["gradient"][step]:
            for order, parts in orders(t, x):
                for part in parts:
                    order_sums(sums, order, part)
            for part in pieces(x):
                error_sums(sums, part)
                step_sums(sums, step, part)
    return sums


def transforms_row(name, sums, studied):
    """The row of all tensors has the native order alone, because not all have another."""
    row, best = {"studied_steps": studied}, (-1, None)
    for order in ("native", "HWIO"):
        for basis in BASES:
            held = None if name == "all" and order == "HWIO" else sums.get(("compaction", order, basis))
            value = None if held is None else ratio(held[3], held[5])
            if (order, basis) != ("HWIO", "identity"):
                row[f"{order.lower()}_{basis}_15"] = value
            if value is not None and value > best[0] * (1 + 1e-12):
                best = (value, f"{order}/{basis}")
    row["best_basis"] = best[1]
    steps = [value for key, value in sums.items() if key[0] == "step"]
    row["spectral_entropy"] = ratio(sum(s[4] for s in steps), sum(s[5] for s in steps))
    return row


def check_transforms(load, capture):
    if not any(row["status"] == "ok" for row in load("transforms")):
        print("skipped without FFTW: transforms, compaction, spectra, autocorrelation, fft_errors, spectrum_steps")
        return
    iteration = capture["iteration"]
    steps = evenly(len(iteration), 8)
    every = pooled(capture["tensors"], lambda t: transform_sums(t, steps), kinds=True)
    tables = {name: {} for name in ("transforms", "compaction", "spectra", "autocorrelation", "fft_errors", "spectrum_steps")}
    for row, sums in every.items():
        if row[0] != "all" or not row[1]:
            tables["transforms"][row[:1]] = transforms_row(row[0], sums, len(steps))
        for key, s in sums.items():
            if key[0] == "compaction":
                for share, held in zip(SHARES, s):
                    tables["compaction"][(*row, *key[1:], number(share))] = {"energy_share": ratio(held, s[5])}
            elif key[0] == "periodogram":
                for band, power in enumerate(s):
                    tables["spectra"][(*row, key[1], "periodogram", number((band + 0.5) / 32))] = {"share": ratio(power, s.sum())}
            elif key[0] == "welch":
                for k, power in enumerate(s):
                    tables["spectra"][(*row, key[1], "welch", number(k / 64))] = {"share": ratio(power, s.sum())}
            elif key[0] == "lag":
                tables["autocorrelation"][(*row, key[1], str(key[2]))] = {"autocorrelation": ratio(s[0], s[1]) if s[2] else None}
            elif key[0] == "error":
                tables["fft_errors"][(*row, key[1], number(key[2]), number(key[3]))] = {"nmse": ratio(s[0], s[1]), "error": ratio(s[2], s[3])}
            elif key[0] == "step":
                tables["spectrum_steps"][(*row, str(key[1]), str(iteration[key[1]]))] = {
                    "low_share": ratio(s[0], s[3]), "fft_share_15": ratio(s[1], s[3]), "raw_share_15": ratio(s[2], s[3]),
                    "spectral_entropy": ratio(s[4], s[5])}
    compare("transforms", done(load("transforms")), ["tensor"], tables["transforms"])
    compare("compaction", load("compaction"), ["tensor", "kind", "order", "basis", "kept"], tables["compaction"])
    compare("spectra", load("spectra"), ["tensor", "kind", "order", "estimate", "frequency"], tables["spectra"], floors={"share": 1e-6})
    compare("autocorrelation", load("autocorrelation"), ["tensor", "kind", "order", "lag"], tables["autocorrelation"],
            floors={"autocorrelation": 1e-3})
    # Rounding is left where next to nothing is dropped: an absolute 1e-12 of the energy and of the root mean square is as good as 0.
    compare("fft_errors", load("fft_errors"), ["tensor", "kind", "method", "theta", "quantile"], tables["fft_errors"],
            floors={"nmse": 1e-6, "error": 1e-6})
    compare("spectrum_steps", load("spectrum_steps"), ["tensor", "kind", "step", "iteration"], tables["spectrum_steps"])


# Steps: steps, step_lags

def constant(x):
    return x.var() <= 1e-10 * (x**2).mean()


def pearson(a, b):
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())


def check_steps(load, capture):
    finite = [t for t in capture["tensors"] if t["finite"]]
    means = {(t["name"], t["kind"]): t["mean"] for t in finite}
    means["all", ""] = np.concatenate([t["mean"] for t in finite], axis=1)
    window = windows(capture["iteration"])
    main, lags = {}, {}
    for key, mean in means.items():
        main[key[:1]] = {f"step_lag_{lag}": None for lag in (1, 2, 4, 8, 16)}
        varied = [not constant(x) for x in mean]
        for lag in range(1, min(16, len(mean) - 1) + 1):
            found = [pearson(mean[i], mean[i + lag]) for i in range(len(mean) - lag)
                     if varied[i] and varied[i + lag] and window[i] == window[i + lag]]
            if found:
                lags[(*key, str(lag))] = {"pearson": np.mean(found), "pairs": len(found)}
                if lag in (1, 2, 4, 8, 16):
                    main[key[:1]][f"step_lag_{lag}"] = np.mean(found)
    floors = {"pearson": 1e-3, **{f"step_lag_{lag}": 1e-3 for lag in (1, 2, 4, 8, 16)}}
    compare("steps", done(load("steps")), ["tensor"], main, floors=floors)
    compare("step_lags", load("step_lags"), ["tensor", "kind", "lag"], lags, floors=floors)


# Bases that are kept: gradiveq, gradiveq_lambda, gradiveq_loss, gradiveq_curve

def slices(t):
    """Up to 8 whole slices, of which the first 4096 elements are looked at, and K, the elements of a whole one."""
    mean, n = t["mean"], t["mean"].shape[1]
    if t["kind"] == "conv":
        mean = mean.reshape(-1, *t["shape"]).transpose(0, 3, 4, 2, 1).reshape(len(mean), n)
        k = t["shape"][0] * t["shape"][1] * t["shape"][3]
    else:
        k = min(n, max(4096, -(-n // 16)))
    return [mean[:, k * i:k * i + min(k, 4096)] for i in evenly(n // k, 8)], k


def basis(samples):
    """Mean, principal directions, and their energies."""
    mu = samples.mean(axis=0)
    _, s, directions = np.linalg.svd(samples - mu, full_matrices=False)
    # Only rounding is left of constant samples and of the part that the mean takes off.
    scale = np.abs(samples).max() * np.sqrt(samples.size)
    kept = min(len(samples) - 1, samples.shape[1], int((s > 1e-7 * scale).sum()))
    return mu, directions[:kept], s[:kept] ** 2


def components(energies, lost):
    if not energies.sum() > 0:
        return 0
    return int(np.searchsorted(np.cumsum(energies), (1 - lost) * energies.sum() * (1 - 1e-12)) + 1)


def residual(x, mu, directions):
    """Squared errors of the samples without what the directions hold."""
    rest = x - mu
    rest = rest - rest @ directions.T @ directions
    return (rest**2).sum(axis=1)


def gradiveq_sums(t):
    parts, k = slices(t)
    half, sums = len(t["mean"]) // 2, {}
    for x in parts:
        energies = basis(x)[2]
        for lost in (0.1, 0.05, 0.02, 0.01, 0.005, 0.001):
            add(sums, ("lambda", lost), components(energies, lost), k, 1)
    learned = [basis(x[:half]) for x in parts]
    for i, (x, (mu, directions, energies)) in enumerate(zip(parts, learned)):
        d = components(energies, 0.01)
        add(sums, "slice", 1, x.shape[1], d)
        energy = (x**2).sum(axis=1)
        bases = {"own": (mu, directions[:d])}
        if len(parts) > 1:
            other = learned[(i + 1) % len(parts)]
            bases["other"] = (mu, other[1][:d])
        for name, one in bases.items():
            lost = residual(x, *one)
            add(sums, (name, 0), lost[:half].sum(), energy[:half].sum())
            for step in range(half, len(x)):
                add(sums, (name, step - half + 1), lost[step], energy[step])
        for count in (2**i for i in range(half) if 2**i < half):
            lost = residual(x, mu, directions[:count])
            add(sums, ("curve", count), lost[:half].sum(), energy[:half].sum(), lost[half:].sum(), energy[half:].sum(), count, k)
    return sums


def gradiveq_row(sums, samples):
    def later(name):
        parts = [s for key, s in sums.items() if key[0] == name and key[1] > 0]
        return ratio(sum(s[0] for s in parts), sum(s[1] for s in parts)) if parts else None
    count, elements, d = sums["slice"]
    return {"basis_samples": samples, "compared_slices": count, "compared_elements": elements / count, "basis_components": d / count,
            "own_nmse": later("own"), "next_nmse": ratio(*sums["own", 1]), "other_nmse": later("other")}


def check_gradiveq(load, capture):
    every = pooled(capture["tensors"], gradiveq_sums, kinds=False)
    tables = {name: {} for name in ("gradiveq", "gradiveq_lambda", "gradiveq_loss", "gradiveq_curve")}
    for row, sums in every.items():
        tables["gradiveq"][row[:1]] = gradiveq_row(sums, len(capture["iteration"]))
        for key, s in sums.items():
            if key[0] == "lambda":
                tables["gradiveq_lambda"][(*row, number(key[1]))] = {"components": s[0] / s[2], "ratio": ratio(s[1], s[0])}
            elif key[0] in ("own", "other"):
                if s[1] > 0:
                    tables["gradiveq_loss"][(*row, key[0], str(key[1]))] = {"nmse": ratio(*s)}
            elif key[0] == "curve" and s[4] <= s[5]:
                tables["gradiveq_curve"][(*row, str(key[1]))] = {"kept": s[4] / s[5], "window_share": 1 - s[0] / s[1], "later_share": 1 - s[2] / s[3]}
    compare("gradiveq", done(load("gradiveq")), ["tensor"], tables["gradiveq"], floors={"own_nmse": 1e-6, "next_nmse": 1e-6, "other_nmse": 1e-6})
    compare("gradiveq_lambda", load("gradiveq_lambda"), ["tensor", "kind", "lambda"], tables["gradiveq_lambda"])
    compare("gradiveq_loss", load("gradiveq_loss"), ["tensor", "kind", "basis", "age"], tables["gradiveq_loss"], floors={"nmse": 1e-6})
    compare("gradiveq_curve", load("gradiveq_curve"), ["tensor", "kind", "components"], tables["gradiveq_curve"], floors={"later_share": 1e-3})


# Low rank: low_rank, subspaces, singular_values

def step_pairs(iteration):
    """First steps of up to four pairs of consecutive steps of a window, evenly spaced among all such pairs."""
    pairs = np.flatnonzero(np.diff(windows(iteration)) == 0)
    return [int(pairs[i]) for i in evenly(len(pairs), 4)]


def both(starts):
    """The steps of the pairs, each once. Spans are then compared between all that are consecutive."""
    return sorted({step for start in starts for step in (start, start + 1)})


def shorter_side(matrix):
    """The matrix with its shorter side first, of which at most 256 rows are looked at."""
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    return matrix[evenly(len(matrix), 256)]


def filter_pearsons(matrix):
    """Correlations of the pairs of rows, at most 128, that are not constant."""
    rows = [row for row in matrix[evenly(len(matrix), 128)] if not constant(row)]
    if len(rows) < 2:
        return None
    return np.corrcoef(rows)[np.triu_indices(len(rows), 1)]


def matrix_sums(t, starts, window):
    sums = {}
    shape = t["shape"]
    matrices = {step: t["mean"][step].reshape(shape[0], -1) for step in both(starts)}
    if len(shape) < 2:
        for matrix in matrices.values():
            for rank in (1, 2, 4, 8, 16, 32):
                add(sums, ("rank", rank), (matrix**2).sum(), (matrix**2).sum())
        return sums
    decomposed = {step: np.linalg.svd(shorter_side(matrix), full_matrices=False)[:2] for step, matrix in matrices.items()}
    side = min(next(iter(matrices.values())).shape)
    for step, (_, s) in decomposed.items():
        held = np.cumsum(s**2)
        if held[-1] > 0:  # the rows that were looked at stand for the energy of all
            held *= (matrices[step]**2).sum() / held[-1]
        for rank in (1, 2, 4, 8, 16, 32):
            add(sums, ("rank", rank), held[min(rank, len(s)) - 1], held[-1])
            if rank < side and rank <= 8:
                add(sums, ("subspace", rank), held[rank - 1], held[-1])
        if held[-1] > 0:
            add(sums, "rows", np.exp(scipy.stats.entropy(s**2)), components(s**2, 0.1), components(s**2, 0.01), 1)
        pearsons = filter_pearsons(matrices[step])
        if pearsons is not None:
            add(sums, "filters", pearsons.mean(), np.abs(pearsons).mean(), 1)
    for start in [step for step in decomposed if step + 1 in decomposed and window[step] == window[step + 1]]:
        for rank in (1, 2, 4, 8):
            # Directions without energy are arbitrary.
            if rank < side and min(decomposed[step][1][rank - 1] for step in (start, start + 1)) > 0:
                angles = scipy.linalg.subspace_angles(decomposed[start][0][:, :rank], decomposed[start + 1][0][:, :rank])
                add(sums, ("angles", rank), (np.cos(angles) ** 2).mean(), np.degrees(angles.max()), 1)
    return sums


def low_rank_row(t, sums, starts):
    matrix = t is not None and len(t["shape"]) > 1
    row = {"studied_steps": len(both(starts)), "rows": t["shape"][0] if matrix else None,
           "columns": int(np.prod(t["shape"][1:])) if matrix else None}
    means = sums.get("rows") if matrix else None
    for i, column in enumerate(("effective_rank", "components_90_percent", "components_99_percent")):
        row[column] = None if means is None else means[i] / means[3]
    for rank in (1, 2, 4, 8, 16, 32):
        row[f"rank_{rank}_share"] = ratio(*sums["rank", rank]) if matrix or t is None else None
    filters = sums.get("filters")
    for i, column in enumerate(("filter_pearson_mean", "filter_pearson_absolute")):
        row[column] = None if filters is None else filters[i] / filters[2]
    return row


def check_power_shares(rows):
    """One power iteration with random vectors keeps no more than the best vectors do."""
    global compared
    for row in rows:
        for rank in (1, 2, 4, 8):
            power, best = row[f"power_{rank}_share"], row[f"rank_{rank}_share"]
            compared += 1
            if (power == "") != (best == "") or power and not 0 <= float(power) <= float(best) * (1 + TOLERANCE):
                deviations.append(f"low_rank {row['tensor']} power_{rank}_share: {power} is not between 0 and rank_{rank}_share {best}")


def singular_values(t, starts):
    """Shares of the energy, mean over the steps that have any."""
    if len(t["shape"]) < 2 or min(t["shape"][0], int(np.prod(t["shape"][1:]))) < 2:
        return []
    squares = [np.linalg.svd(shorter_side(t["mean"][step].reshape(t["shape"][0], -1)), compute_uv=False) ** 2 for step in both(starts)]
    shares = [s / s.sum() for s in squares if s.sum() > 0]
    return np.mean(shares, axis=0) if shares else []


def check_low_rank(load, capture):
    starts = step_pairs(capture["iteration"])
    window = windows(capture["iteration"])
    by_name = {t["name"]: t for t in capture["tensors"]}
    every = pooled(capture["tensors"], lambda t: matrix_sums(t, starts, window), kinds=False)
    main, subspaces = {}, {}
    for row, sums in every.items():
        main[row[:1]] = low_rank_row(by_name.get(row[0]), sums, starts)
        for key, s in sums.items():
            if key[0] == "angles":
                subspaces[(*row, str(key[1]))] = {"energy_share": ratio(*sums["subspace", key[1]]), "overlap": s[0] / s[2],
                                                  "largest_angle": s[1] / s[2]}
    rows = done(load("low_rank"))
    compare("low_rank", rows, ["tensor"], main, floors={"filter_pearson_mean": 1e-3})
    check_power_shares(rows)
    compare("subspaces", load("subspaces"), ["tensor", "kind", "rank"], subspaces)
    spectra = {}
    for t in capture["tensors"]:
        shares = singular_values(t, starts) if t["finite"] else []
        for k, (share, sum_so_far) in enumerate(zip(shares, np.cumsum(shares))):
            spectra[t["name"], t["kind"], str(k + 1)] = {"energy_share": share, "cumulative_share": sum_so_far}
    compare("singular_values", load("singular_values"), ["tensor", "kind", "component"], spectra, floors={"energy_share": 1e-9})


# Certainty: certainty, unambiguous

def sign_sums(sums, g):
    workers = g.shape[1]
    majority = np.abs(np.sign(g).sum(axis=1))
    some = (g != 0).any(axis=1)
    add(sums, "signs", (majority == workers)[some].sum(), majority[some].sum() / workers, some.sum())


def samples_of(t, micro):
    """Gradients, their variances, and a factor by which squares of sums of the former are to be multiplied before they are compared.

    The axes are steps, series and elements. Without second moments the squared mean of W workers is to be compared with the variance of that
    mean. Both times W^2 (W - 1), these are the square of the sum, times W - 1, and W times the sum of the squares less the square of the sum.
    That does not round values of bfloat16: where one worker alone has a gradient, as of a rare token, both are equal, and nothing passes.
    """
    g, workers = t["gradient"], t["gradient"].shape[1]
    if t["second_moment"] is not None and micro > 1:
        return g, t["second_moment"], 1
    total = g.sum(axis=1, keepdims=True)
    return total, workers * (g**2).sum(axis=1, keepdims=True) - total**2, workers - 1


def summed_until_sent(gradients, variances, factor, alpha):
    """How many elements were sent, the steps for which they had been summed, how many were never sent, and how many there are, once and at
    all steps."""
    r, v, age, times = np.zeros((4, *gradients.shape[1:]))
    waited = 0
    for gradient, variance in zip(gradients, variances):
        r, v, age = r + gradient, v + variance, age + 1
        sent = factor * r**2 > alpha * v
        waited += age[sent].sum()
        times += sent
        r, v, age = np.where(sent, 0, r), 0.999 * np.where(sent, 0, v), np.where(sent, 0, age)
    return times.sum(), waited, (times == 0).sum(), times.size, gradients.size


def certainty_sums(t, micro):
    sums = {}
    if t["gradient"].shape[1] > 1:
        sign_sums(sums, t["gradient"])
    elif t["second_moment"] is None:
        return sums
    gradients, variances, factor = samples_of(t, micro)
    for alpha in (0.25, 0.5, 1, 1.5, 2, 3, 5, 10):
        add(sums, ("pass", alpha), (factor * gradients**2 > alpha * variances).sum(), gradients.size)
    for alpha in (1, 1.5, 2):
        add(sums, ("sent", alpha), *summed_until_sent(gradients, variances, factor, alpha))
    return sums


def certainty_row(sums, workers):
    row = dict.fromkeys(("sign_unanimous_share", "sign_majority", "chance_unanimous_share", "chance_majority", "sent_share_1", "wait_steps_1"))
    if "signs" in sums:
        s = sums["signs"]
        heads = np.arange(workers + 1)
        row.update({"sign_unanimous_share": ratio(s[0], s[2]), "sign_majority": ratio(s[1], s[2]), "chance_unanimous_share": 2 / 2**workers,
                    "chance_majority": (scipy.stats.binom.pmf(heads, workers, 0.5) * np.abs(2 * heads - workers)).sum() / workers})
    if ("sent", 1) in sums:
        s = sums["sent", 1]
        row.update({"sent_share_1": s[0] / s[4], "wait_steps_1": ratio(s[1], s[0])})
    return row


def check_certainty(load, capture):
    workers = capture["tensors"][0]["gradient"].shape[1]
    every = pooled(capture["tensors"], lambda t: certainty_sums(t, capture["micro"]), kinds=False)
    main, unambiguous = {}, {}
    for row, sums in every.items():
        main[row[:1]] = certainty_row(sums, workers)
        for key, s in sums.items():
            if key[0] == "pass":
                sent = sums.get(("sent", key[1]))
                unambiguous[(*row, number(key[1]))] = {
                    "pass_share": s[0] / s[1], "sent_share": None if sent is None else sent[0] / sent[4],
                    "wait_steps": None if sent is None else ratio(sent[1], sent[0]), "never_share": None if sent is None else sent[2] / sent[3]}
    compare("certainty", done(load("certainty")), ["tensor"], main)
    compare("unambiguous", load("unambiguous"), ["tensor", "kind", "alpha"], unambiguous)


# Losses: losses, packets, importance

IMPORTANCES = ("importance_q50", "importance_q90", "importance_q99", "above_0_001", "above_0_01", "above_0_1")


def lost_energies(x, share):
    """Energy in a share of the packets, of the smallest and of the largest; of the last packet that a share selects a part may be taken."""
    energies = np.sort([(x[i:i + 360] ** 2).sum() for i in range(0, len(x), 360)])
    count = share * len(energies)
    whole = int(count)
    for ordered in (energies, energies[::-1]):
        yield ordered[:whole].sum() + (count - whole) * (ordered[whole] if whole < len(ordered) else 0)


def importances(g, w):
    some = (g != 0) | (w != 0)
    ratios = np.sort(np.abs(g[some] / w[some]))
    if not len(ratios):
        return None
    columns = [nearest_rank(ratios, q) for q in (0.5, 0.9, 0.99)] + [(ratios > limit).mean() for limit in (0.001, 0.01, 0.1)]
    return len(ratios) * np.array([*columns, 1])


def loss_sums(t, steps):
    sums = {}
    for step in steps:
        for x in t["gradient"][step]:
            for share in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3):
                add(sums, ("lost", share), *lost_energies(x, share), (x**2).sum())
            if t["weight"] is not None:
                found = importances(x, t["weight"][step])
                if found is not None:
                    add(sums, ("importance", step), *found)
    return sums


def importance_columns(s):
    return {column: None if s is None else s[i] / s[6] for i, column in enumerate(IMPORTANCES)}


def check_losses(load, capture):
    iteration = capture["iteration"]
    steps = evenly(len(iteration), 16)
    every = pooled(capture["tensors"], lambda t: loss_sums(t, steps), kinds=False)
    main, packets, importance = {}, {}, {}
    for row, sums in every.items():
        tenth = sums["lost", 0.1]
        over_steps = [s for key, s in sums.items() if key[0] == "importance"]
        main[row[:1]] = {"studied_steps": len(steps), "lost_smallest_10": ratio(tenth[0], tenth[2]), "lost_largest_10": ratio(tenth[1], tenth[2]),
                         **importance_columns(sum(over_steps) if over_steps else None)}
        for key, s in sums.items():
            if key[0] == "lost":
                for which, lost in (("smallest", s[0]), ("random", key[1] * s[2]), ("largest", s[1])):
                    packets[(*row, number(key[1]), which)] = {"nmse": ratio(lost, s[2])}
            else:
                importance[(*row, str(key[1]), str(iteration[key[1]]))] = importance_columns(s)
    compare("losses", done(load("losses")), ["tensor"], main)
    compare("packets", load("packets"), ["tensor", "kind", "lost", "which"], packets)
    compare("importance", load("importance"), ["tensor", "kind", "step", "iteration"], importance)


# Distribution: distribution, fits, formats

QUANTILES = {"q50": 0.5, "q90": 0.9, "q99": 0.99, "q99_9": 0.999, "q100": 1}
FITS = ("normal", "laplace", "generalised normal", "student t")


def generalised_shape(d):
    """Mallat's exponent, from the ratio of the moments; at most 20, where the distribution is nearly uniform."""
    wanted = np.log((d**2).mean() / np.abs(d).mean() ** 2)

    def excess(log_b):
        b = np.exp(log_b)
        return scipy.special.gammaln(1 / b) + scipy.special.gammaln(3 / b) - 2 * scipy.special.gammaln(2 / b) - wanted

    low, high = np.log(0.05), np.log(20)
    return 20.0 if excess(high) > 0 else np.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-14))


def student(d):
    """Degrees of freedom and scale, from the mean and the variance of the logarithm of the magnitudes that are not 0."""
    logs = np.log(np.abs(d[d != 0]))
    wanted = 4 * logs.var() - scipy.special.polygamma(1, 0.5)
    if wanted <= 0:
        return np.inf, np.exp(logs.mean() - 0.5 * (scipy.special.digamma(0.5) + np.log(2)))
    log_nu = scipy.optimize.brentq(lambda v: np.log(scipy.special.polygamma(1, np.exp(v) / 2) / wanted), np.log(1e-3), np.log(1e12), xtol=1e-14)
    nu = np.exp(log_nu)
    return nu, np.exp(logs.mean() - 0.5 * (scipy.special.digamma(0.5) - scipy.special.digamma(nu / 2) + log_nu))


def fitted(x):
    """Yields for each fit the shape, the scale, and the distribution with its parameters."""
    mean, median = x.mean(), np.median(x)
    yield 0, x.std(), (scipy.stats.norm, mean, x.std())
    spread = np.abs(x - median).mean()
    yield 0, spread, (scipy.stats.laplace, median, spread)
    b = generalised_shape(x - mean)
    scale = np.abs(x - mean).mean() * np.exp(scipy.special.gammaln(1 / b) - scipy.special.gammaln(2 / b))
    yield b, scale, (scipy.stats.gennorm, b, mean, scale)
    nu, scale = student(x - median)
    yield 1 / nu, scale, (scipy.stats.t, nu, median, scale) if np.isfinite(nu) else (scipy.stats.norm, median, scale)


def kolmogorov(ordered, distribution, *parameters):
    ranks = np.array(evenly(len(ordered), 1024))
    shares = distribution.cdf(ordered[ranks], *parameters)
    return max(np.abs(shares - ranks / len(ordered)).max(), np.abs(shares - (ranks + 1) / len(ordered)).max())


def fit_sums(sums, x):
    n, rms, ordered = len(x), np.sqrt((x**2).mean()), np.sort(x)
    if constant(x):
        return
    for name, (shape, scale, distribution) in zip(FITS, fitted(x)):
        add(sums, ("fit", name), n * shape, n * scale / rms, n * kolmogorov(ordered, *distribution), n)


def magnitude_sums(sums, x):
    n, ordered = len(x), np.sort(np.abs(x))
    energy = (x**2).sum()
    rms = np.sqrt(energy / n)
    for name, q in QUANTILES.items():
        add(sums, ("magnitude", name), n * nearest_rank(ordered, q) / rms, n)
    count = n // 100
    if count >= 10 and ordered[-count - 1] > 0:
        inverse = np.log(ordered[-count:] / ordered[-count - 1]).mean()
        add(sums, "tail", n * inverse, n)
        add(sums, "inverse", inverse, inverse**2, 1)
    # terngrad does not clip elements that are all equal, so neither does this.
    clipped = ordered if (x == x[0]).all() else np.minimum(ordered, 2.5 * x.std())
    add(sums, "ternary", (clipped * (clipped[-1] - clipped)).sum(), ((ordered - clipped) ** 2).sum(), energy)


def minifloat(x, mantissa, lowest, largest):
    """To nearest, ties to even, in a format with so many bits of mantissa and lowest exponent; larger values become the largest."""
    exponent = np.maximum(np.frexp(x)[1] - 1, lowest)
    step = np.ldexp(1.0, exponent - mantissa)
    return np.clip(np.rint(x / step) * step, -largest, largest)


def e4m3(x):
    return minifloat(x, 3, -6, 448.0)


def e5m2(x):
    return minifloat(x, 2, -14, 57344.0)


def nvfp4(x, largest):
    """Blocks of 16 with a scale in e4m3, and one of a gradient, so that the largest block's is 448. Exact until the only division."""
    blocks = np.pad(x, (0, -len(x) % 16)).reshape(-1, 16)
    scales = e4m3(448 * np.abs(blocks).max(axis=1, keepdims=True) / largest)
    units = np.where(scales > 0, 2688 * blocks / (scales * largest), 0)
    return (minifloat(units, 1, 0, 6.0) * scales * largest / 2688).ravel()[:len(x)], (np.abs(units) > 6).ravel()[:len(x)]


def formats_of(x, top):
    """Yields for each format the rounded values, and which are beyond its largest number."""
    yield "fp16", np.clip(x, -65504, 65504).astype("f2").astype("f8"), np.abs(x) > 65504
    yield "bf16", from_bfloat16(to_bfloat16(x)), np.zeros(len(x), bool)
    for name, rounding, largest in (("fp8 e4m3", e4m3, 448.0), ("fp8 e5m2", e5m2, 57344.0)):
        yield name, rounding(x), np.abs(x) > largest
        yield name + ", scaled", rounding(x * largest / top) * top / largest if top else x, np.zeros(len(x), bool)
    yield "nvfp4", *(nvfp4(x, top) if top else (x, x != 0))


def drawn(x, levels):
    """Expected share that vanishes, and squared error, where blocks of 512 are drawn to one of the neighbours among so many levels."""
    blocks = np.pad(np.abs(x), (0, -len(x) % 512)).reshape(-1, 512)
    step = blocks.max(axis=1, keepdims=True) / levels
    units = np.where(step > 0, blocks / step, 0)
    below = units - np.floor(units)
    vanish = np.where((units > 0) & (units < 1), 1 - units, 0).sum()
    return vanish, (below * (1 - below) * step**2).sum()


def format_sums(sums, x, top):
    n, energy = len(x), (x**2).sum()
    for name, values, beyond in formats_of(x, top):
        add(sums, ("format", name), ((x != 0) & (values == 0)).sum(), beyond.sum(), ((values - x) ** 2).sum(), (x != 0).sum(), n, energy)
    for name, levels in (("int8, drawn", 127), ("int4, drawn", 7)):
        vanish, error = drawn(x, levels)
        add(sums, ("format", name), vanish, 0, error, (x != 0).sum(), n, energy)


def byte_sums(sums, x):
    stored = x.astype("<f4")
    sums["exponents"] = sums.get("exponents", 0) + np.bincount(stored.view("<u4") >> 23 & 255, minlength=256)
    places = stored.view("u1").reshape(-1, 4)
    sums["bytes"] = sums.get("bytes", 0) + np.stack([np.bincount(place, minlength=256) for place in places.T])


def distribution_sums(t, steps):
    sums = {}
    for step in steps:
        for gradient in t["gradient"][step]:
            for x in pieces(gradient):
                byte_sums(sums, x)
                format_sums(sums, x, np.abs(gradient).max())
                if x.any():
                    magnitude_sums(sums, x)
                    fit_sums(sums, x)
    return sums


def distribution_row(sums, studied, one):
    row = {"studied_steps": studied}
    for name in QUANTILES:
        row[f"magnitude_{name}"] = ratio(*sums["magnitude", name])
    row["tail_index"] = sums["tail"][1] / sums["tail"][0] if "tail" in sums else None
    if one and "inverse" in sums and sums["inverse"][2] > 1:
        mean, squares, count = sums["inverse"][0] / sums["inverse"][2], *sums["inverse"][1:]
        low, high = scipy.stats.t.interval(0.95, count - 1, mean, np.sqrt((squares / count - mean**2) / (count - 1)))
        row["tail_index_low"], row["tail_index_high"] = 1 / high, 1 / low if low > 0 else None
    else:
        row["tail_index_low"] = row["tail_index_high"] = None
    row["ternary_variance"], row["ternary_bias"] = sums["ternary"][:2] / sums["ternary"][2]
    distances = [(sums["fit", name][2] / sums["fit", name][3], name) for name in FITS if ("fit", name) in sums]
    row["best_fit"] = min(distances)[1] if distances else None
    exponents = scipy.stats.entropy(sums["exponents"], base=2)
    places = np.mean([scipy.stats.entropy(place, base=2) for place in sums["bytes"]])
    row.update({"exponent_entropy": exponents, "byte_entropy": places, "lossless_ratio_limit": ratio(8, places),
                "exponent_coding_limit": 32 / (24 + exponents)})
    return row


def check_distribution(load, capture):
    steps = evenly(len(capture["iteration"]), 16)
    every = pooled(capture["tensors"], lambda t: distribution_sums(t, steps), kinds=False)
    main, fits, formats = {}, {}, {}
    for row, sums in every.items():
        main[row[:1]] = distribution_row(sums, len(steps), one=row[0] != "all")
        for key, s in sums.items():
            if key[0] == "fit":
                shape = {"generalised normal": s[0] / s[3], "student t": ratio(s[3], s[0])}.get(key[1])
                fits[(*row, key[1])] = {"shape": shape, "scale_over_rms": s[1] / s[3], "distance": s[2] / s[3]}
            elif key[0] == "format":
                formats[(*row, key[1])] = {"vanish_share": ratio(s[0], s[3]), "clip_share": s[1] / s[4], "nmse": ratio(s[2], s[5])}
    compare("distribution", done(load("distribution")), ["tensor"], main)
    compare("fits", load("fits"), ["tensor", "kind", "fit"], fits)
    compare("formats", load("formats"), ["tensor", "kind", "format"], formats)


def check(folder, path, name):
    out = os.path.join(folder, name)
    subprocess.run([GRADTOOL, "analyze", path, "--out", out, "--threads", "1"], check=True, stdout=subprocess.DEVNULL)

    def load(table):
        file = os.path.join(out, table + ".csv")
        if not os.path.exists(file):
            return []
        with open(file, newline="") as f:
            return list(csv.DictReader(f))

    capture, before = read(path), len(deviations)
    for one in (check_transforms, check_steps, check_gradiveq, check_low_rank, check_certainty, check_losses, check_distribution):
        one(load, capture)
    deviations[before:] = [f"{name}: {text}" for text in deviations[before:]]


def report():
    """Prints for each table of each capture the first deviations and how many there are."""
    tables = {}
    for text in deviations:
        tables.setdefault(tuple(text.split()[:2]), []).append(text)
    for where, texts in tables.items():
        print(f"{' '.join(where)}: {len(texts)} deviations")
        for text in texts[:12]:
            print("  " + text)


def main():
    with tempfile.TemporaryDirectory() as folder:
        check(folder, os.path.join(SOURCE, "datasets", "llama-shakespeare.h5"), "llama")
        for name, make in (("made", write_made), ("long", write_long), ("wide", write_wide)):
            path = os.path.join(folder, name + ".h5")
            make(path)
            check(folder, path, name)
    if deviations:
        report()
        sys.exit(f"{len(deviations)} of {compared} numbers deviate from those of NumPy and SciPy")
    print(f"{compared} numbers agree with NumPy and SciPy")


main()

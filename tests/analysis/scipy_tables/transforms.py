"""Transforms: the tables transforms, compaction, spectra, autocorrelation, fft_errors, spectrum_steps."""

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.signal
import scipy.stats

from .comparing import add, compare, done, evenly, nearest_rank, number, pieces, pooled, ratio, rounded

SHARES = (0.01, 0.05, 0.10, 0.15, 0.25)
BASES = ("identity", "dft", "dct", "hadamard", "haar")
HADAMARD = {2**i: scipy.linalg.hadamard(2**i) for i in range(7)}


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

"""Bases that are kept: the tables gradiveq, gradiveq_lambda, gradiveq_loss, gradiveq_curve."""

import numpy as np

from .comparing import add, compare, done, evenly, number, pooled, ratio


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

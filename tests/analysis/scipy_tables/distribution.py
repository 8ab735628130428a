"""Distribution: the tables distribution, fits, formats."""

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats

from .captures import from_bfloat16, to_bfloat16
from .comparing import add, compare, constant, done, evenly, nearest_rank, pieces, pooled, ratio


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

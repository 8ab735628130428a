"""Low rank: the tables low_rank, subspaces, singular_values."""

import numpy as np
import scipy.linalg
import scipy.stats

from .comparing import TOLERANCE, add, compare, constant, done, evenly, expect, pooled, ratio, windows
from .kept_bases import components


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
    for row in rows:
        for rank in (1, 2, 4, 8):
            power, best = row[f"power_{rank}_share"], row[f"rank_{rank}_share"]
            good = (power == "") == (best == "") and (not power or 0 <= float(power) <= float(best) * (1 + TOLERANCE))
            expect(good, f"low_rank {row['tensor']} power_{rank}_share: {power} is not between 0 and rank_{rank}_share {best}")


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

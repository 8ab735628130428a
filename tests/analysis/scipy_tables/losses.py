"""Losses: the tables losses, packets, importance."""

import numpy as np

from .comparing import add, compare, done, evenly, nearest_rank, number, pooled, ratio


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

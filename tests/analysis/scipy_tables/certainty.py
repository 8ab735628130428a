"""Certainty: the tables certainty, unambiguous."""

import numpy as np
import scipy.stats

from .comparing import add, compare, done, number, pooled, ratio


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

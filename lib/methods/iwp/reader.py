"""Masks of a few ranks, then a ring sum of the elements in any of them."""
import struct

import numpy as np

from payloads.common import SHARED, philox, philox_bits, positions

F = np.float32


def roots_of(case, parameters, step):
    """The first of a Fisher-Yates shuffle of the ranks."""
    ranks = list(range(case.ranks))
    count = min(int(parameters["roots"]), case.ranks)
    for j, bits in enumerate(philox_bits(case.seed, step, SHARED, 0, count)):
        other = j + (int(bits) * (case.ranks - j) >> 32)
        ranks[j], ranks[other] = ranks[other], ranks[j]
    return ranks[:count]


def quantile(importance, density):
    k = max(1, int(np.floor(density * len(importance) + 0.5)))
    return F(-1) if k >= len(importance) else np.sort(importance)[::-1][k]


class Layer:
    def __init__(self, tensor, k):
        self.part = slice(tensor["first"], tensor["first"] + tensor["elements"])
        self.dense = len(tensor["shape"]) < 2 and tensor["kind"] != "other"
        self.threshold, self.k = None, k

    def mask(self, a, w, step, parameters, draws):
        """(importance, threshold, expected mask) of one rank."""
        density, policy, warmup = float(parameters["density"]), parameters["policy"], int(parameters["warmup"])
        floor = F(float(parameters["eps"]) * np.sqrt(np.mean(w.astype(np.float64) ** 2))) + F(1e-8)
        importance = np.abs(a) / (np.abs(w) + floor)
        wide = importance.astype(np.float64)
        t = float(parameters["threshold"])
        warm = step < 5 * warmup
        if warm:
            threshold = quantile(importance, 0.25 ** (1 + step // warmup))
        elif policy == "fixed":
            threshold = F(t)
        elif policy == "target_density":
            if self.threshold is None or not self.threshold > 0:
                self.threshold = quantile(importance, density)
            threshold = self.threshold
        elif policy == "mean_std":
            threshold = F(wide.mean() + self.k * wide.std())
        else:
            threshold = F(np.clip(t * (1 + wide.var() / (wide.mean() + 1e-8)), t, max(t, float(parameters["limit"]))))
        q = F(parameters["bernoulli"])
        mask = (importance > threshold) | ((q > 0) & (draws * threshold < q * importance))
        return importance, threshold, mask

    def steer(self, reached, step, parameters):
        density = float(parameters["density"])
        if step < 5 * int(parameters["warmup"]):
            return
        factor = 1.05 if reached > 1.25 * density else 1 / 1.05 if reached < 0.8 * density else 1.0
        if parameters["policy"] == "target_density":
            self.threshold = self.threshold * F(factor)
        self.k *= factor


def follow(case):
    parameters, p, n = case.parameters, case.ranks, case.n
    mu, clip = F(parameters["mu"]), float(parameters["clip"])
    layers = [[Layer(t, float(parameters["k"])) for t in case.tensors] for _ in range(p)]
    a, u = np.zeros((p, n), F), np.zeros((p, n), F)
    dense = np.zeros(n, bool)
    for layer in layers[0]:
        dense[layer.part] = layer.dense
    for index, step in enumerate(case.steps):
        for r, g in enumerate(step["inputs"]):
            norm = np.sqrt(np.sum(g.astype(np.float64) ** 2))
            most = clip / np.sqrt(p)
            u[r] = mu * u[r] + (F(most / norm) if clip > 0 and norm > most else F(1)) * g
            a[r] += u[r]
        union = dense.copy()
        roots = roots_of(case, parameters, index)
        for r in range(p):
            header, mask = [m for call, m in step["messages"][r] if call == "all_gather_v"]
            assert (r in roots) == bool(header), f"step {index}: rank {r} should{'' if r in roots else ' not'} broadcast"
            if not header:
                assert not mask
                continue
            size, count, code = struct.unpack("<QII", header)
            assert size == len(mask)
            sent = np.zeros(n, bool)
            sent[positions(mask, code, count, n)] = True
            draws = philox(case.seed, index, r, 0, n)
            for layer in layers[r]:
                if layer.dense:
                    assert not sent[layer.part].any()
                    continue
                importance, threshold, expected = layer.mask(a[r][layer.part], case.weight[layer.part], index,
                                                             parameters, draws[layer.part])
                close = np.abs(importance - threshold) <= 1e-5 * threshold
                assert np.all((sent[layer.part] == expected) | close), f"step {index}: rank {r} marks other elements"
                layer.steer(np.mean(sent[layer.part]), index, parameters)
            union |= sent
        total = np.zeros(int(union.sum()), np.float64)
        for r in range(p):
            (call, values), = [m for m in step["messages"][r] if m[0] == "all_reduce_f32"]
            values = np.frombuffer(values, "<f4")
            assert np.allclose(values, a[r][union], rtol=2e-6, atol=1e-9), f"step {index}: rank {r} sends other values"
            total += values
            a[r][union] = 0
            if parameters["masking"] == "on":
                u[r][union & ~dense] = 0
        result = np.zeros(n, F)
        result[union] = (total / p).astype(F)
        yield result

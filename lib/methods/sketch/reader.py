"""The messages of sketch: a sum of count sketches, then a sum of exact values (README.md)."""
import numpy as np

from payloads.common import SHARED, largest, philox_bits, ring_sum

F = np.float32


class Sketch:
    def __init__(self, n, rows, columns, seed):
        blocks, element = (n + 15) // 16, np.arange(n)
        self.cells, self.signs, self.size = [], [], rows * columns
        self.tails = []  # which elements lie past the end of their row, where they are added last
        for row in range(rows):
            draws = philox_bits(seed, row, SHARED, 0, 4 * blocks).reshape(-1, 4)
            start = (draws[:, 0] * np.uint64(columns)) >> np.uint64(32)
            cell = start.astype(np.int64)[element // 16] + element % 16
            self.tails.append(cell >= columns)
            self.cells.append(row * columns + cell % columns)
            self.signs.append(1 - 2 * (draws[element // 16, 1] >> (element % 16).astype(np.uint64) & np.uint64(1))
                              .astype(np.int64))

    def sketch_of(self, x):
        out = np.zeros(self.size, F)
        for cell, sign, tail in zip(self.cells, self.signs, self.tails):
            past = np.zeros(self.size, F)
            np.add.at(out, cell[~tail], (sign.astype(F) * x)[~tail])
            np.add.at(past, cell[tail], (sign.astype(F) * x)[tail])
            out += past
        return out

    def estimate(self, sketch):
        return np.median([sign.astype(F) * sketch[cell] for cell, sign in zip(self.cells, self.signs)], axis=0)


def follow(case):
    p, n, parameters = case.ranks, case.n, case.parameters
    rows, mu = int(parameters["rows"]), F(parameters["mu"])
    k = min(max(int(np.floor(float(parameters["ratio"]) * n + 0.5)), 1), n)
    candidates = min(n, int(np.floor(float(parameters["candidates"]) * k + 0.5)))
    columns = max(256, int(np.ceil(n / float(parameters["compression"]) / rows)))
    e, v = np.zeros((p, n), F), np.zeros((p, n), F)
    sketch = Sketch(n, rows, columns, int(parameters["seed"]))
    for index, step in enumerate(case.steps):
        said = [[np.frombuffer(data, "<f4") for call, data in rank if call == "all_reduce_f32"]
                for rank in step["messages"]]
        if rows * columns + candidates >= n:
            yield ring_sum([rank[0] for rank in said]) * (F(1) / F(p))
            continue
        for r, g in enumerate(step["inputs"]):
            v[r] = mu * v[r] + g
            e[r] = e[r] + v[r] if case.ef else v[r]
            assert np.array_equal(said[r][0], sketch.sketch_of(e[r])), f"step {index}: rank {r} sends another sketch"
        chosen = largest(sketch.estimate(ring_sum([rank[0] for rank in said])), candidates)
        for r in range(p):
            assert np.array_equal(said[r][1], e[r][chosen]), f"step {index}: rank {r} sends other values"
        total = ring_sum([rank[1] for rank in said])
        kept = largest(total, k)
        result = np.zeros(n, F)
        result[chosen[kept]] = total[kept] * (F(1) / F(p))
        e[:, chosen[kept]] = 0
        if mu > 0:
            v[:, chosen[kept]] = 0
        yield result

"""The messages of lhc: a bitmap combined with OR, and a sum of tables that is decoded by peeling (README.md)."""
import numpy as np

from payloads.common import SHARED, largest, philox_bits, ring_sum

TOLERANCE = 1e-5  # what is peeled from a cell carries the rounding of all that was in it
F = np.float32


class Table:
    def __init__(self, n, lanes, rows, seed):
        blocks = (n + lanes - 1) // lanes
        draws = philox_bits(seed, 0, SHARED, 0, 4 * blocks).reshape(-1, 4)
        block, lane = np.arange(n) // lanes, np.arange(n) % lanes
        each = rows // 3
        self.size = rows * lanes
        self.cell = [((j * each + (draws[block, j] * np.uint64(each) >> np.uint64(32)).astype(np.int64)) * lanes + lane)
                     for j in range(3)]
        self.sign = [1 - 2 * (draws[block, 3] >> np.uint64(j) & np.uint64(1)).astype(np.int64) for j in range(3)]

    def table_of(self, x, where):
        out = np.zeros(self.size, F)
        for cell, sign in zip(self.cell, self.sign):
            np.add.at(out, cell[where], sign[where].astype(F) * x[where])
        return out

    def values(self, table, where):
        """Returns the elements' values as each of their three cells gives them."""
        return [sign[where] * table[cell[where]] for cell, sign in zip(self.cell, self.sign)]

    def read(self, table, where):
        """Rounds of peeling: all elements that are alone in a cell at once."""
        table, out, unknown = table.astype(np.float64), np.zeros(len(self.cell[0])), where.copy()
        while len(unknown):
            count = np.zeros(self.size, np.int64)
            for cell in self.cell:
                np.add.at(count, cell[unknown], 1)
            alone = np.array([count[cell[unknown]] == 1 for cell in self.cell])
            found = alone.any(axis=0)
            if not found.any():
                break
            known, hashed = unknown[found], np.argmax(alone[:, found], axis=0)
            out[known] = np.choose(hashed, self.values(table, known))
            for cell, sign in zip(self.cell, self.sign):
                np.subtract.at(table, cell[known], sign[known] * out[known])
            unknown = unknown[~found]
        out[unknown] = np.median(self.values(table, unknown), axis=0)
        return out


def follow(case):
    p, n, parameters = case.ranks, case.n, case.parameters
    k = min(max(int(np.floor(float(parameters["density"]) * n + 0.5)), 1), n)
    lanes = 1
    while parameters["block"] == "auto" and lanes < 1024 and 4 * lanes * lanes <= k // 600:
        lanes *= 2
    lanes = lanes if parameters["block"] == "auto" else int(parameters["block"])
    auto = parameters["ratio"] == "auto"
    e = np.zeros((p, n), F)
    for index, step in enumerate(case.steps):
        kept = []
        for r, g in enumerate(step["inputs"]):
            e[r] = e[r] + g if case.ef else g
            kept.append(largest(e[r], k))
        union = np.zeros(n, bool)
        for where in kept:
            union[where] = True
        if auto:
            most = np.bincount(np.flatnonzero(union) % lanes).max()
            rows = int(np.ceil(1.3 * most + 12 * np.sqrt(most) + 20))
        else:
            rows = int(np.ceil(((n + lanes - 1) // lanes) / float(parameters["ratio"])))
        rows = max((rows + 2) // 3, 1) * 3
        dense = rows > n // lanes or rows * lanes >= n
        if auto or not dense:
            parts = [next(data for call, data in rank if call == "all_gather_v") for rank in step["messages"]]
            parts = parts[-1:] + parts[:-1]  # rank r hands out part r + 1
            said = np.unpackbits(np.frombuffer(b"".join(parts), np.uint8), bitorder="little")
            assert np.array_equal(np.flatnonzero(said), np.flatnonzero(union)), f"step {index}: another bitmap"
        tables = [np.frombuffer(next(data for call, data in rank if call == "all_reduce_f32"), "<f4")
                  for rank in step["messages"]]
        if dense:
            for r in range(p):
                assert np.array_equal(np.flatnonzero(tables[r]), kept[r])
            result = ring_sum(tables).astype(float)
        else:
            table = Table(n, lanes, rows, int(parameters["seed"]))
            for r in range(p):
                expected = table.table_of(e[r], kept[r])
                assert np.array_equal(tables[r], expected), f"step {index}: rank {r} sends another table"
            result = table.read(ring_sum(tables), np.flatnonzero(union))
        for r in range(p):
            e[r][kept[r]] = 0
        yield (result / p).astype(F)

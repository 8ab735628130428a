"""Rotation, a table of whole numbers, sums at the owners of parts."""
import numpy as np

from payloads.common import SHARED, packed, philox, philox_bits

TOLERANCE = 5e-6  # float32 rounding of three transforms of 1024
TABLES = {"3": ([0, 10, 15, 19, 23, 27, 32, 42], 3.2971933456919635),
          "4": ([0, 3, 5, 7, 9, 11, 13, 14, 15, 17, 19, 21, 23, 25, 27, 30], 2.1538746940614564)}


def hadamard(x):
    """The unnormalised transform in natural order."""
    x, h = x.copy(), 1
    while h < len(x):
        pairs = x.reshape(-1, 2, h)
        x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        h *= 2
    return x


def rotate(x, signs, back):
    """Blocks of 1024, whose result is transposed as a 32 by 32 matrix, and a last one in natural order; orthonormal."""
    out = np.empty(len(x))
    x = x if back else x * signs
    for first in range(0, len(x), 1024):
        block = x[first:first + 1024]
        turned = hadamard(block) / np.sqrt(len(block))
        if len(block) == 1024:
            turned = turned.reshape(32, 32).T.reshape(-1)
        out[first:first + len(block)] = turned
    return out * signs if back else out


def follow(case):
    p, n, bits = case.ranks, case.n, case.parameters["bits"]
    table, t = TABLES[bits]
    if case.parameters["table"] == "uniform":
        table, t = list(range(2 ** int(bits))), TABLES["3"][1]
    table, bits = np.array(table), int(bits)
    top = table[-1]
    rest = n % 1024
    d = n - rest + (1 << (rest - 1).bit_length() if rest else 0)
    groups = (d + 31) // 32
    words = philox_bits(int(case.parameters["seed"]), 0, SHARED, 0, groups)
    element = np.arange(d)
    signs = 1.0 - 2.0 * (words[element // 32] >> (element % 32).astype(np.uint64) & np.uint64(1))
    part = [slice(32 * (groups * r // p), 32 * (groups * (r + 1) // p)) for r in range(p)]
    lane = "<u2" if p * top > 255 else "<u1"
    e = np.zeros((p, n))
    for index, step in enumerate(case.steps):
        said = [list(rank) for rank in step["messages"]]
        u = [e[r] + g for r, g in enumerate(step["inputs"])]
        norms = [np.frombuffer(rank.pop(0)[1], "<f4")[0] for rank in said]
        assert np.allclose(norms, [np.linalg.norm(x) for x in u], rtol=1e-5)
        norm = float(max(norms))
        sums = np.concatenate([np.frombuffer(rank[-1][1], lane) for rank in said]).astype(np.int64)
        values = np.zeros((p, 32 * groups), np.int64)
        own = np.copy(sums)  # what remains is the owner's own share
        for r in range(p):
            for hop in range(1, p):
                to = part[(r + hop) % p]
                codes = packed(said[r][hop - 1][1], 0, to.stop - to.start, bits)
                values[r][to] = table[codes]
                own[to] -= values[r][to]
        for r in range(p):
            values[r][part[r]] = own[part[r]]
        values, sums = values[:, :d], sums[:d]
        steps = np.sqrt(d) / norm * top / (2 * t)
        for r in range(p):
            y = rotate(np.pad(u[r], (0, d - n)), signs, False)
            place = np.clip(y * steps + top / 2, 0, top)
            low = np.clip(np.searchsorted(table, place, side="right") - 1, 0, len(table) - 2)
            up = philox(case.seed, index, r, 0, d) * (table[low + 1] - table[low]) < place - table[low]
            differs = values[r] != np.where(up, table[low + 1], table[low])
            assert differs.sum() <= 2, f"step {index}: rank {r} rounds {differs.sum()} elements otherwise"
            if case.ef:
                e[r] = rotate(y - (values[r] - top / 2) / steps, signs, True)[:n]
        yield rotate((sums / p - top / 2) / steps, signs, True)[:n].astype(np.float32)

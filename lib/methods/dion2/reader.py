"""Dion2's row selection as its page states it, in float64 from the gradients alone, next to what the messages say."""
import numpy as np

from payloads.common import philox_bits, ring_sum

TOLERANCE = 2e-6  # float32 sums, of a momentum over steps and of a row over ranks


def chunked_l1(row):
    """The sums of a row's magnitudes, in the order that the page states."""
    total = 0.0
    for first in range(0, len(row), 7680):
        chunk = np.abs(row[first: first + 7680].astype(np.float64))
        lanes = np.concatenate([chunk, np.zeros(-len(chunk) % 16)]).reshape(-1, 16)
        sums = np.zeros(16)
        for lane in lanes:
            sums += lane
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2:]
        total += sums[0]
    return np.float32(total)


def follow(case):
    ratio, mu, by_norm = float(case.parameters["ratio"]), np.float32(case.parameters["mu"]), case.parameters["select"] == "l1"
    momenta = [np.zeros(case.n, dtype=np.float32) for _ in range(case.ranks)]
    exact = np.zeros(case.n)  # the momentum of the mean gradient, which one optimiser would have
    for number, step in enumerate(case.steps):
        assert all(m[0] == "all_reduce_f32" for rank in step["messages"] for m in rank)
        words = [[np.frombuffer(m[1], dtype="<f4") for m in rank] for rank in step["messages"]]
        momenta = [m + x for m, x in zip(momenta, step["inputs"])]
        exact += np.mean([x.astype(np.float64) for x in step["inputs"]], axis=0)
        draws = philox_bits(case.seed, number, 0xFFFFFFFF, 0, case.n) >> np.uint64(1)
        sums = ring_sum([mine[0] for mine in words])
        result, key_at, at = np.zeros(case.n), 0, 0
        for tensor in case.tensors:
            part = slice(tensor["first"], tensor["first"] + tensor["elements"])
            rows = tensor["shape"][0]
            columns = tensor["elements"] // rows
            if len(tensor["shape"]) < 2 or rows == 1 or columns == 1:
                for x, mine in zip(step["inputs"], words):
                    assert np.array_equal(mine[-1][at: at + tensor["elements"]], x[part]), "a tensor sent as it is"
                result[part] = exact[part]
                exact[part] = 0.0
                for m in momenta:
                    m[part] = 0.0
                at += tensor["elements"]
                continue
            k = min(max(int(np.ceil(ratio * rows)), 1), rows)
            chosen = np.arange(rows)
            if k < rows:
                if by_norm:
                    own = [mine[0][key_at: key_at + rows] for mine in words]
                    for m, said in zip(momenta, own):
                        assert np.array_equal([chunked_l1(row) for row in m[part].reshape(rows, columns)], said), "norms"
                    keys = sums[key_at: key_at + rows]
                else:
                    keys = draws[key_at: key_at + rows].astype(np.float64)
                chosen = np.sort(np.argsort(-keys, kind="stable")[:k])
                key_at += rows
            full = exact[part].reshape(rows, columns)
            kept = np.zeros((rows, columns))
            kept[chosen] = full[chosen]
            result[part] = kept.ravel()
            full[chosen] *= float(mu)
            for m, mine in zip(momenta, words):
                own = m[part].reshape(rows, columns)
                assert np.array_equal(mine[-1][at: at + k * columns], own[chosen].ravel()), "the rows of a rank"
                own[chosen] *= mu
            at += k * columns
        for mine in words:
            assert len(mine) == 1 + (by_norm and key_at > 0) and len(mine[-1]) == at
            assert len(mine) == 1 or len(mine[0]) == key_at
        yield result

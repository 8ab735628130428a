"""ARC-Top-K as its page states it, in float64 from the gradients, next to what the messages say."""
import numpy as np

import payloads

TOLERANCE = 1e-6  # a float32 sum over ranks


def follow(case):
    normals = payloads.module("powersgd").normals
    ratio, rank, start = float(case.parameters["ratio"]), int(case.parameters["rank"]), int(case.parameters["start_iteration"])
    held = [np.zeros(case.n) for _ in range(case.ranks)]
    for number, step in enumerate(case.steps):
        words = [[np.frombuffer(m[1], dtype="<f4").astype(np.float64) for m in rank] for rank in step["messages"]]
        assert all(m[0] == "all_reduce_f32" for rank in step["messages"] for m in rank)
        result, p_at, q_at, row_at = np.zeros(case.n), 0, 0, 0
        compressed = False
        for tensor in case.tensors:
            part = slice(tensor["first"], tensor["first"] + tensor["elements"])
            rows = tensor["shape"][0]
            columns = tensor["elements"] // rows
            r, k = min(rank, rows, columns), min(max(int(np.ceil(ratio * rows)), 1), rows)
            matrix = len(tensor["shape"]) > 1 and rows > 1 and columns > 1 and r * rows + k * columns < rows * columns
            if number < start or not matrix:
                at = tensor["first"] if number < start else p_at
                for x, mine in zip(step["inputs"], words):
                    assert np.array_equal(mine[0][at: at + tensor["elements"]], x[part]), "a tensor sent as it is"
                result[part] = np.mean([x[part].astype(np.float64) for x in step["inputs"]], axis=0)
                p_at += tensor["elements"]
                continue
            compressed = True
            own = [e[part].reshape(rows, columns) + x[part].reshape(rows, columns) for e, x in zip(held, step["inputs"])]
            v = normals(case.seed, number, q_at, r * columns).reshape(r, columns).T
            said = [mine[0][p_at: p_at + r * rows].reshape(r, rows).T for mine in words]
            for m, p in zip(own, said):
                assert np.max(np.abs(m @ v - p)) <= 1e-5 * max(np.max(np.abs(p)), 1e-30), "the projection of a rank"
            scores = np.sum(np.mean(said, axis=0) ** 2, axis=1)
            chosen = np.sort(np.argsort(-scores, kind="stable")[:k])
            for m, mine in zip(own, words):
                sent = mine[1][row_at: row_at + k * columns].reshape(k, columns)
                assert np.max(np.abs(sent - m[chosen])) <= 1e-6 * np.max(np.abs(m)), "the rows of a rank"
            full = np.zeros((rows, columns))
            full[chosen] = np.mean([mine[1][row_at: row_at + k * columns].reshape(k, columns) for mine in words], axis=0)
            result[part] = full.ravel()
            for e, m in zip(held, own):
                left = m.copy()
                left[chosen] = 0.0
                e[part] = left.ravel() if case.ef else 0.0
            p_at, q_at, row_at = p_at + r * rows, q_at + r * columns, row_at + k * columns
        for mine in words:
            assert len(mine[0]) == p_at and (not compressed or len(mine[1]) == row_at)
        yield result

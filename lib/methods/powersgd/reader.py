"""Low-rank factors, recomputed in float64 from the inputs next to what the messages say."""
import numpy as np

from payloads.common import SHARED, philox

TOLERANCE = 1e-5  # products of float32 factors


def normals(seed, step, first, count):
    u = philox(seed, step, SHARED, 0, first + count + 2).astype(np.float64)
    pair = np.arange(first, first + count) // 2 * 2
    radius, angle = np.sqrt(-2.0 * np.log(1.0 - u[pair])), 2.0 * np.pi * u[pair + 1]
    return np.where(np.arange(first, first + count) % 2 == 0, radius * np.cos(angle), radius * np.sin(angle))


def orthonormal(p):
    """Gram-Schmidt on columns, by QR with positive diagonal."""
    q, r = np.linalg.qr(p)
    return q * np.sign(np.diag(r))


def follow(case):
    p, parameters = case.ranks, case.parameters
    rank, rate = int(parameters["rank"]), float(parameters["min_compression_rate"])
    start, warm = int(parameters["start_iteration"]), parameters["warm_start"] == "on"
    matrices, others = [], []
    for tensor in case.tensors:
        rows = tensor["shape"][0]
        columns = tensor["elements"] // rows
        r = min(rank, rows, columns)
        small = len(tensor["shape"]) < 2 or rows == 1 or columns == 1
        part = slice(tensor["first"], tensor["first"] + tensor["elements"])
        if small or rows * columns < rate * r * (rows + columns):
            others.append(part)
            matrices.append(None)
        else:
            matrices.append((part, rows, columns, r))
    held = [np.zeros(case.n) for _ in range(p)]
    factors = {}
    for number, step in enumerate(case.steps):
        words = [[np.frombuffer(m[1], dtype="<f4").astype(np.float64) for m in rank] for rank in step["messages"]]
        assert all(m[0] == "all_reduce_f32" for rank in step["messages"] for m in rank)
        first = sum(w[0] for w in words) / p
        if number < start:
            yield first
            continue
        second = sum(w[1] for w in words) / p
        result, at, q_at = np.zeros(case.n), 0, 0
        mine = [e + x for e, x in zip(held, step["inputs"])]
        rest = iter(others)
        for index, matrix in enumerate(matrices):
            if matrix is None:
                part = next(rest)
                result[part] = first[at: at + part.stop - part.start]
                at += part.stop - part.start
                continue
            part, rows, columns, r = matrix
            if not warm or index not in factors:
                factors[index] = normals(case.seed, number, q_at, r * columns).reshape(r, columns).T
            sent_p = first[at: at + r * rows].reshape(r, rows).T
            m = np.mean([x[part].reshape(rows, columns) for x in mine], axis=0)
            expected = m @ factors[index]
            assert np.max(np.abs(sent_p - expected)) <= 1e-5 * np.max(np.abs(expected)), "first factor"
            sent_p = orthonormal(sent_p)
            sent_q = second[q_at: q_at + r * columns].reshape(r, columns).T
            expected = m.T @ sent_p
            assert np.max(np.abs(sent_q - expected)) <= 1e-4 * np.max(np.abs(expected)), "second factor"
            factors[index] = sent_q
            result[part] = (sent_p @ sent_q.T).ravel()
            for e, x in zip(held, mine):
                e[part] = x[part] - result[part] if case.ef else 0.0
            at += r * rows
            q_at += r * columns
        assert at == len(first) and q_at == len(second)
        yield result

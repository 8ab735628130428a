"""Dion as its paper states it, in float64 from the gradients alone, next to what the messages say."""
import numpy as np

import payloads

TOLERANCE = 2e-4  # of the largest value: factors are float32, and a step amplifies the rounding of those before it


def follow(case):
    powersgd = payloads.module("powersgd")  # its start columns and Gram-Schmidt are Dion's too
    fraction, most = float(case.parameters["rank_fraction"]), int(case.parameters["rank"])
    mu, scaled = float(case.parameters["mu"]), case.parameters["scale"] == "shape"
    momentum, right = {}, {}
    for number, step in enumerate(case.steps):
        words = [[np.frombuffer(m[1], dtype="<f4").astype(np.float64) for m in rank] for rank in step["messages"]]
        assert all(m[0] == "all_reduce_f32" for rank in step["messages"] for m in rank)
        result, p_at, q_at = np.zeros(case.n), 0, 0
        for index, tensor in enumerate(case.tensors):
            part = slice(tensor["first"], tensor["first"] + tensor["elements"])
            gradients = [x[part].astype(np.float64) for x in step["inputs"]]
            rows = tensor["shape"][0]
            columns = tensor["elements"] // rows
            if len(tensor["shape"]) < 2 or rows == 1 or columns == 1:
                for x, mine in zip(gradients, words):
                    assert np.array_equal(mine[0][p_at: p_at + len(x)], x), "a tensor sent as it is"
                result[part] = np.mean(gradients, axis=0)
                p_at += tensor["elements"]
                continue
            r = min(max(int(fraction * min(rows, columns)), 1), most)
            if index not in momentum:
                momentum[index] = [np.zeros((rows, columns)) for _ in gradients]
                right[index] = powersgd.normals(case.seed, number, q_at, r * columns).reshape(r, columns).T
            b = [m + g.reshape(rows, columns) for m, g in zip(momentum[index], gradients)]
            sent = [mine[0][p_at: p_at + r * rows].reshape(r, rows).T for mine in words]
            for own, said in zip(b, sent):
                assert np.max(np.abs(own @ right[index] - said)) <= TOLERANCE * np.max(np.abs(said)), "P of a rank"
            p = powersgd.orthonormal(np.mean([own @ right[index] for own in b], axis=0))
            said = [mine[1][q_at: q_at + r * columns].reshape(r, columns).T for mine in words]
            for own, factor in zip(b, said):
                assert np.max(np.abs(own.T @ p - factor)) <= TOLERANCE * np.max(np.abs(factor)), "R of a rank"
            full = np.mean([own.T @ p for own in b], axis=0)
            momentum[index] = [own - (1.0 - mu) * p @ full.T for own in b]
            lengths = np.linalg.norm(full, axis=0)
            assert np.all(lengths > 1e-5 * np.max(lengths)), "columns that become zero are not in these gradients"
            right[index] = full / lengths
            result[part] = (p @ right[index].T).ravel() * (np.sqrt(rows / columns) if scaled else 1.0)
            right[index] = right[index] * (np.sqrt(rows / columns) if scaled else 1.0)
            p_at += r * rows
            q_at += r * columns
        assert all(len(mine[0]) == p_at and (len(mine) < 2 or len(mine[1]) == q_at) for mine in words)
        yield result

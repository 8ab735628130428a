"""Cosine coefficients of chunks (README.md). follow() repeats the steps of the paper in NumPy, in float64 and with the
momentum of elements, beside the messages of every rank."""
import numpy as np

from payloads import chunks

TOLERANCE = 1e-5  # sums of 64 products in float32


def basis(n):
    """The orthonormal DCT-II: row k is frequency k."""
    k, i = np.arange(n)[:, None], np.arange(n)[None, :]
    return np.sqrt(np.where(k == 0, 1.0, 2.0) / n) * np.cos(np.pi * (2 * i + 1) * k / (2 * n))


def forward(block):
    """The coefficients of a chunk, horizontal frequency by horizontal frequency."""
    return (basis(block.shape[0]) @ block @ basis(block.shape[1]).T).T.reshape(-1)


def inverse(coefficients, shape):
    return basis(shape[0]).T @ coefficients.reshape(shape[1], shape[0]).T @ basis(shape[1])


def read(parameters, tensors, payload):
    """For each chunk the indices of its elements, positions and values of its coefficients."""
    cut = chunks.cut(tensors, int(parameters["k"]))
    total = sum(kept for _, _, kept in cut)
    if parameters["values"] == "sign":
        scales = np.frombuffer(payload, "<f4", len(tensors) if total else 0)
        words = (total + 31) // 32
        negative = np.unpackbits(np.frombuffer(payload, np.uint8, 4 * words, 4 * len(scales)), bitorder="little")
        at = 4 * len(scales) + 4 * words
    else:
        values, at = np.frombuffer(payload, "<f4", total), 4 * total
    positions = np.frombuffer(payload, "<u2", total, at)
    assert len(payload) == at + (2 * total + 3) // 4 * 4
    first = 0
    for tensor, indices, kept in cut:
        part = slice(first, first + kept)
        found = positions[part].astype(int)
        assert np.all(np.diff(found) > 0) and found[-1] < indices.size
        sent = values[part] if parameters["values"] == "f32" else scales[tensor] * (1.0 - 2.0 * negative[part])
        yield indices, found, sent.astype(np.float64)
        first += kept


def decode(parameters, n, payload):
    return decode_layout(parameters, chunks.flat(n), payload)


def decode_layout(parameters, tensors, payload):
    out = np.zeros(sum(tensor["elements"] for tensor in tensors))
    for indices, positions, values in read(parameters, tensors, payload):
        coefficients = np.zeros(indices.size)
        coefficients[positions] = values
        out[indices] = inverse(coefficients, indices.shape)
    return out.astype(np.float32)


def follow(case):
    beta, signs = float(case.parameters["beta"]), case.parameters["values"] == "sign"
    momentum = np.zeros((case.ranks, case.n))
    for step in case.steps:
        sums = None
        for rank, (gradient, messages) in enumerate(zip(step["inputs"], step["messages"])):
            (call, payload), = messages
            assert call == "all_gather_v"
            momentum[rank] = beta * momentum[rank] + gradient
            sent = list(read(case.parameters, case.tensors, payload))
            if sums is None:
                sums = [(indices, np.zeros(indices.size), np.zeros(indices.size)) for indices, _, _ in sent]
            for (indices, positions, values), (_, total, count) in zip(sent, sums):
                coefficients = forward(momentum[rank][indices])
                size = np.abs(coefficients)
                least = np.min(size[positions])
                assert np.sum(size > least + 1e-5 * np.max(size)) <= len(positions)  # the largest, up to rounding
                if signs:
                    clear = size[positions] > 1e-5 * np.max(size)
                    assert np.array_equal(np.sign(values)[clear], np.sign(coefficients[positions])[clear])
                else:
                    assert np.allclose(values, coefficients[positions], rtol=0, atol=1e-5 * np.max(size))
                left = np.zeros(indices.size)
                left[positions] = coefficients[positions]
                momentum[rank][indices] -= inverse(left, indices.shape)
                total[positions] += values
                count[positions] += 1
        out = np.zeros(case.n)
        for indices, total, count in sums:
            over = np.maximum(count, 1) if case.parameters["average"] == "senders" else case.ranks
            out[indices] = inverse(total / over, indices.shape)
        yield np.sign(out) if case.parameters["sign"] == "on" else out

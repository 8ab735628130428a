"""A transpose all-reduce between whose ranks packets are lost: rotation, losses and means are recomputed."""
import numpy as np

from payloads.common import SHARED, philox, philox_bits

TOLERANCE = 5e-6  # float32 rounding of two transforms of up to 65536 elements


def hadamard(x):
    """The orthonormal transform of every column, in natural order."""
    order, h = len(x), 1
    while h < order:
        pairs = x.reshape(order // (2 * h), 2, h, -1)
        x = np.concatenate([pairs[:, :1] + pairs[:, 1:], pairs[:, :1] - pairs[:, 1:]], axis=1)
        h *= 2
    return x.reshape(order, -1) / np.sqrt(order)


def lost_elements(case, step, sender, first_packet, elements, each):
    """Which of a message's elements are lost."""
    packets = -(-elements // each)
    loss = float(case.parameters["loss"])
    draws = philox(case.seed, step, sender, 0, 4 * (first_packet + packets))[4 * first_packet::4].astype(np.float64)
    if case.parameters["model"] == "iid":
        lost = draws < loss
    else:
        cut = int(np.floor(loss * packets + draws[0])) if packets else 0
        lost = np.arange(packets) >= packets - cut
    return np.repeat(lost, each)[:elements]


def follow(case):
    p, n, given = case.ranks, case.n, case.parameters
    rotates, each = given["hadamard"] == "on", int(given["packet"]) // 4
    order = min(int(given["block"]), 1 << (n - 1).bit_length()) if rotates else 1
    columns = -(-n // order)
    m = order * columns
    bounds = [m * r // p for r in range(p + 1)]
    part = [slice(bounds[r], bounds[r + 1]) for r in range(p)]
    first = np.cumsum([0] + [-(-(s.stop - s.start) // each) for s in part])
    for index, step in enumerate(case.steps):
        signs = np.ones(m)
        if rotates:
            words = philox_bits(case.seed, index, SHARED, 0, -(-m // 32))
            element = np.arange(m)
            signs = 1.0 - 2.0 * (words[element // 32] >> (element % 32).astype(np.uint64) & np.uint64(1))
        turned = []
        for x in step["inputs"]:
            padded = np.pad(x.astype(np.float64), (0, m - n)) * signs
            turned.append(hadamard(padded.reshape(order, columns)).reshape(-1))
        mean = np.zeros(m)
        for r, messages in enumerate(step["messages"]):
            assert [call for call, _ in messages] == ["exchange"] * (p - 1) + ["all_gather_v"]
            for hop in range(1, p):
                to = (r + hop) % p
                said = np.frombuffer(messages[hop - 1][1], "<f4")
                assert np.allclose(said, turned[r][part[to]], rtol=0, atol=TOLERANCE * np.abs(turned[r]).max())
            own = part[r]
            total, arrived = turned[r][own].copy(), np.ones(own.stop - own.start)
            for sender in range(p):
                if sender == r:
                    continue
                there = np.ones(len(total), bool)
                if given["direction"] != "pull":
                    there = ~lost_elements(case, index, sender, first[r], len(total), each)
                total += np.where(there, turned[sender][own], 0)
                arrived += there
            said = np.frombuffer(messages[-1][1], "<f4").astype(np.float64)
            expected = total / (arrived if given["average"] == "arrived" else p)
            assert np.allclose(said, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max(initial=0))
            if given["direction"] != "push":
                said[lost_elements(case, index, r, first[r], len(total), each)] = 0
            mean[own] = said
        result = hadamard(mean.reshape(order, columns)).reshape(-1) * signs
        yield result[:n].astype(np.float32)

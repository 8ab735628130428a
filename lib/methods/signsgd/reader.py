"""Signs both ways: what ranks exchange is recomputed from their gradients, and the majority is counted."""
import numpy as np

from payloads import signs


def decode(parameters, n, payload):
    return signs.decode_tensors([n], payload, parameters["scale"] == "mean")


def follow(case):
    p, beta = case.ranks, np.float32(case.parameters["momentum"])
    scaled = case.parameters["scale"] == "mean"
    elements = [tensor["elements"] for tensor in case.tensors]
    words = signs.words_of(elements)
    shard = [slice(4 * (words * r // p), 4 * (words * (r + 1) // p)) for r in range(p)]
    momentum = np.zeros((p, case.n), np.float32)
    for step in case.steps:
        means, sent = [], []
        for r, gradient in enumerate(step["inputs"]):
            momentum[r] = beta * momentum[r] + (np.float32(1) - beta) * gradient
            mean, bits = signs.encode(elements, momentum[r])
            means.append(mean)
            sent.append(bits)
        negative = np.stack([np.unpackbits(np.frombuffer(b, np.uint8), bitorder="little") for b in sent]).sum(axis=0)
        voted = np.packbits(negative > p / 2, bitorder="little").tobytes()
        for r, messages in enumerate(step["messages"]):
            expected = [("exchange", sent[r][shard[(r + k) % p]]) for k in range(1, p)]
            if scaled:
                (call, data), = [m for m in messages if m[0] == "all_reduce_f32"]
                assert np.allclose(np.frombuffer(data, "<f4"), means[r], rtol=1e-6)
            assert [m for m in messages if m[0] != "all_reduce_f32"] == expected + [("all_gather_v", voted[shard[r]])]
        yield signs.expand(elements, np.mean(means, axis=0) if scaled else np.ones(len(elements)), voted)

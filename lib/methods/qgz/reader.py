"""Integers with a scale per block; follow() quantises, sums and quantises again from the ranks' gradients, and knows
both levels' messages."""
import numpy as np

from payloads.common import packed

F = np.float32


def read(payload, n, bits, block):
    blocks = (n + block - 1) // block
    scales = np.frombuffer(payload, dtype="<f4", count=blocks)
    codes = packed(payload, 4 * blocks, n, bits).astype(np.int64)
    assert len(payload) == 4 * blocks + 4 * ((n * bits + 31) // 32)
    values = np.where(codes >> (bits - 1), codes - (1 << bits), codes).astype(F)
    return values * np.repeat(scales, block)[:n]


def write(x, bits, block):
    scales, codes = [], []
    half = 1 << (bits - 1)
    for at in range(0, len(x), block):
        part = x[at:at + block]
        largest = np.max(np.abs(part))
        scale = F(0) if largest < 2.0 ** -100 else largest / F(half)
        factor = F(1) / scale if scale > 0 else F(0)
        scales.append(scale)
        codes.append(np.clip(np.rint(part * factor), -half, half - 1).astype(np.int64) & ((1 << bits) - 1))
    codes = np.concatenate(codes) if codes else np.zeros(0, np.int64)
    stream = np.zeros((len(codes) * bits + 31) // 32 * 32, dtype=np.uint8)
    stream[:len(codes) * bits] = (codes[:, None] >> np.arange(bits) & 1).reshape(-1)
    return np.array(scales, dtype="<f4").tobytes() + np.packbits(stream, bitorder="little").tobytes()


def decode(parameters, n, payload):
    return read(payload, n, int(parameters["bits"]), int(parameters["block"]))


def follow(case):
    p, n = case.ranks, case.n
    bits, block, last = (int(case.parameters[key]) for key in ("bits", "block", "gather"))
    node = int(case.parameters["node"])
    m = node if node > 1 and p % node == 0 else p
    groups = (n + 31) // 32
    cut = [min(n, 32 * (groups * s // p)) for s in range(p + 1)]
    size = [cut[s + 1] - cut[s] for s in range(p)]

    def sums(parts):
        total = np.zeros(len(parts[0]), F)
        for part in parts:
            total = total + part
        return total

    assert not case.ef
    for step in case.steps:
        first = [[write(x[cut[s]:cut[s + 1]], bits, block) for s in range(p)] for x in step["inputs"]]
        said = [[] for _ in range(p)]
        for r in range(p):
            said[r].append(("all_to_all_v", b"".join(first[r][s] for l in range(m) for s in range(l, p, m))))
        # in_node[r][s]: what rank r has for slice s after its node's sum
        in_node = [{s: sums([read(first[r - r % m + l][s], size[s], bits, block) for l in range(m)])
                    for s in range(r % m, p, m)} for r in range(p)]
        owned = [in_node[r][r] for r in range(p)]
        if m < p:
            second = [{s: write(x, bits, block) for s, x in slices.items()} for slices in in_node]
            for r in range(p):
                said[r].append(("all_to_all_v", b"".join(second[r][s] for s in range(r % m, p, m))))
            owned = [sums([read(second[other][r], size[r], bits, block) for other in range(r % m, p, m)])
                     for r in range(p)]
        final = [write(x, last, block) for x in owned]
        for r in range(p):
            said[r].append(("all_gather_v", final[r]))
            if m < p:
                said[r].append(("all_gather_v", b"".join(final[s] for s in range(r % m, p, m))))
            assert list(step["messages"][r]) == said[r]
        yield np.concatenate([F(1) / F(p) * read(final[s], size[s], last, block) for s in range(p)]).astype(F)

"""DynamiQ in NumPy from the paper's formulas: widths, levels and both roundings, next to what the messages say."""
import numpy as np

from payloads.common import SHARED, philox

TOLERANCE = 2e-6


def bf16(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def levels(bits, uniform):
    """Magnitudes of codes without a sign."""
    top = 2 ** (bits - 1) - 1
    epsilon = 0.0625 if bits == 8 else 0.3
    r = np.arange(top + 1)
    height = r if uniform or bits == 2 else (1.0 + 2.0 * epsilon**2) ** r - 1.0
    return height / height[-1]


def widths(squares, n, budget):
    """The lowest threshold T of 8 bits (and 17/512 T of 4 bits) among bfloat16 values that the budget has room for."""
    sizes = np.minimum(256, n - 256 * np.arange(len(squares)))
    words = (sizes + 31) // 32
    room = np.floor((budget * n - 48 * len(squares) - 8 * ((n + 15) // 16)) / 32)
    values = bf16(squares)
    assert np.all(np.isfinite(values))
    candidates = np.concatenate([[0.0], np.unique(values), np.unique(values) * np.float32(512 / 17), [np.inf]])
    patterns = np.arange(0x7f80, -1, -1) if len(squares) < 40 else np.sort(np.unique(np.clip(np.concatenate(
        [(np.float32(candidates).view(np.uint32) >> 16).astype(np.int64) + d for d in (-1, 0, 1)]), 0, 0x7f80)))[::-1]
    thresholds = bf16(patterns)[:, None]
    found = np.where(values >= thresholds, 8, np.where(values >= thresholds * np.float32(17 / 512), 4, 2))
    over = np.flatnonzero(found @ words > room)
    last = over[0] if len(over) else len(found)
    best = found[last - 1] if last else np.full(len(squares), 2)
    return best, words


def unpack(data, count, bits):
    stream = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    return stream[: count * bits].reshape(count, bits) @ (1 << np.arange(bits))


class Part:
    """Super-groups that travel together, and the sections of their payload."""

    def __init__(self, first, count, n, width, words):
        self.first, self.count, self.n = first, count, n
        self.width, self.words = width[first: first + count], words[first: first + count]
        self.begin, self.end = min(n, 256 * first), min(n, 256 * (first + count))
        self.groups = (self.end - self.begin + 15) // 16
        self.group_codes = (2 * count + 3) // 4 * 4
        self.codes = self.group_codes + (self.groups + 3) // 4 * 4
        self.bytes = self.codes + 4 * int(np.sum(self.width * self.words))

    def parse(self, data):
        """Scales of super-groups, codes of groups, and the signs and levels of elements."""
        assert len(data) == self.bytes, "a payload's size"
        scales = bf16(np.frombuffer(data, "<u2", self.count))
        groups = np.frombuffer(data, np.uint8, self.groups, self.group_codes)
        at, codes = self.codes, []
        for j in range(self.count):
            size = min(256, self.n - 256 * (self.first + j))
            room = 4 * int(self.width[j] * self.words[j])
            codes.append(unpack(data[at: at + room], size, int(self.width[j])))
            at += room
        assert at == len(data)
        return scales, groups, codes

    def decode(self, data, uniform):
        scales, groups, codes = self.parse(data)
        out = []
        for j, code in enumerate(codes):
            bits = int(self.width[j])
            unit = groups[16 * j: 16 * j + (len(code) + 15) // 16].astype(np.float64) / 255.0 * scales[j]
            sign = np.where(code >> (bits - 1), -1.0, 1.0)
            out.append(sign * levels(bits, uniform)[code & (2 ** (bits - 1) - 1)] * np.repeat(unit, 16)[: len(code)])
        return np.concatenate(out) if out else np.zeros(0)

    def check(self, data, x, uniform, u, group_u):
        """Encodes x anew. Elements near a boundary may round otherwise in float32; counts those that do."""
        scales, groups, codes = self.parse(data)
        off = 0
        for j, code in enumerate(codes):
            own = x[256 * j: 256 * j + len(code)]
            largest = np.max(np.abs(own))
            assert scales[j] >= largest * (1 - 1e-6) and scales[j] <= largest * (1 + 2.0**-7) + 1e-37, "a scale"
            bits = int(self.width[j])
            table = levels(bits, uniform)
            for g in range(0, len(code), 16):
                values, k = own[g: g + 16], (256 * j + g) // 16
                most = np.max(np.abs(values))
                if most == 0.0:
                    assert groups[k] == 0
                    continue
                steps = most / scales[j] * 255.0
                expected = np.floor(steps) + (group_u[k] < steps - np.floor(steps))
                off += groups[k] != expected
                assert abs(int(groups[k]) - expected) <= 1, "a group's scale"
                share = np.abs(values) / most
                r = np.clip(np.searchsorted(table, share, side="right") - 1, 0, len(table) - 2)
                up = u[256 * j + g: 256 * j + g + len(values)] * (table[r + 1] - table[r]) < share - table[r]
                said = code[g: g + 16] & (2 ** (bits - 1) - 1)
                assert np.all(np.abs(said - (r + up)) <= 1), "a level"
                off += np.count_nonzero(said != r + up)
                nonzero = share > 1e-6
                assert np.all((code[g: g + 16] >> (bits - 1) == (values < 0))[nonzero]), "a sign"
        return off


def ring_part(groups, i, p):
    first = groups * i // p
    return first, groups * (i + 1) // p - first


def follow(case):
    p, n = case.ranks, case.n
    uniform, correlated = case.parameters["levels"] == "uniform", case.parameters["rounding"] == "correlated"
    count = (n + 255) // 256
    starts = 256 * np.arange(count)
    for number, step in enumerate(case.steps):
        gradients = [x.astype(np.float64) for x in step["inputs"]]
        words = [[np.frombuffer(rank[0][1], "<u2")] for rank in step["messages"]]
        for x, (sent,) in zip(gradients, words):
            sizes = np.minimum(256, n - starts)
            mean, squares = np.add.reduceat(x, starts) / sizes, np.add.reduceat(x * x, starts)
            said_mean, said_squares = bf16(sent[:count]), bf16(sent[count:])
            spread = np.add.reduceat(np.abs(x), starts) / sizes
            assert np.all(np.abs(said_mean - mean) <= 2.0**-8 * np.abs(mean) + 1e-6 * spread), "a mean"
            assert np.all(np.abs(said_squares - squares) <= 2.0**-7 * squares), "a sum of squares"
        # The ring adds bfloat16 in the order of ranks s + 1, ..., s for segment s of the statistics.
        total = np.zeros(2 * count, np.uint16)
        for s in range(p):
            first, length = ring_part(2 * count, s, p)
            part = slice(first, first + length)
            value = bf16(words[(s + 1) % p][0][part])
            for k in range(2, p + 1):
                exact = (value + bf16(words[(s + k) % p][0][part])).view(np.uint32)
                value = bf16((exact + 0x7fff + (exact >> 16 & 1)) >> 16)
            total[part] = value.view(np.uint32) >> 16
        mean = bf16(total[:count]).astype(np.float64) / p
        width, room = widths(total[count:], n, float(case.parameters["bits"]))
        parts = [Part(*ring_part(count, i, p), n, width, room) for i in range(p)]

        draws = [philox(case.seed, number, rank, 0, 256 * count + 16 * count + 4) for rank in range(p)]
        shared = philox(case.seed, number, SHARED, 0, 256 * count + p + 4).astype(np.float64)
        order = list(range(p))
        for k in range(p - 1, 0, -1):
            other = int(np.floor(shared[256 * count + k] * (k + 1)))
            order[k], order[other] = order[other], order[k]
        moved = np.floor(shared[: 256 * count] * p)
        uniforms = [((order[rank] + moved) % p + draws[rank][: 256 * count]) / p if correlated else
                    draws[rank][: 256 * count] for rank in range(p)]

        off = 0
        sums = [x - np.repeat(mean, 256)[:n] for x in gradients]
        result = np.repeat(mean, 256)[:n].copy()
        messages = [list(rank[1:]) for rank in step["messages"]]

        def sent(rank, hop, i):
            call, data = messages[rank][hop]
            assert call == ("exchange" if hop + 1 < p else "all_gather_v"), call
            part = parts[i]
            u, group_u = uniforms[rank], draws[rank][256 * count:]
            off = part.check(data, sums[rank][part.begin: part.end], uniform, u[256 * part.first:], group_u[16 * part.first:])
            return off, part.decode(data, uniform)

        for hop in range(p - 1):
            arriving = []
            for rank in range(p):
                i = (rank - hop) % p
                more, decoded = sent(rank, hop, i)
                off += more
                arriving.append(((rank + 1) % p, parts[i], decoded))
            for rank, part, decoded in arriving:
                sums[rank][part.begin: part.end] += decoded
        for rank in range(p):
            more, decoded = sent(rank, p - 1, (rank + 1) % p)
            off += more
            part = parts[(rank + 1) % p]
            result[part.begin: part.end] += decoded / p
        assert off <= 2 + 1e-3 * n * p, f"{off} of {n * p} roundings differ"
        yield result

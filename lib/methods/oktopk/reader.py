"""Sparse all-reduce: parts to the owners of regions, a threshold on the sums, the survivors to all."""
import numpy as np

from payloads.common import sparse

F = np.float32


def kth(values, k):
    return np.sort(np.abs(values))[::-1][k - 1] if 0 < k <= len(values) else F(0)


def large(values, threshold):
    return (np.abs(values) >= threshold) & (values != 0)


def misses(threshold, count, k):
    return 2 * count > 3 * k or (2 * count < k and threshold != 0)


def steer(threshold, count, least, most, factor):
    return threshold * F(factor) if count > most else threshold / F(factor) if count < least else threshold


def follow(case):
    p, n = case.ranks, case.n
    ratio, period, cut_period, warmup = (float(case.parameters["ratio"]),
                                         *(int(case.parameters[x]) for x in ("period", "regions", "warmup")))
    k = min(max(int(np.floor(ratio * n + 0.5)), 1), n)
    e, local, threshold, borders = np.zeros((p, n), F), [F(0)] * p, F(0), None
    for index, step in enumerate(case.steps):
        said = [list(messages) for messages in step["messages"]]
        take = lambda r, call: next(said[r].pop(i)[1] for i, m in enumerate(said[r]) if m[0] == call)  # noqa: E731
        if index < warmup:
            yield (np.sum([np.frombuffer(take(r, "all_reduce_f32"), "<f4").astype(float) for r in range(p)], axis=0)
                   / p).astype(F)
            continue
        at, u, selected = index - warmup, [], []
        for r, g in enumerate(step["inputs"]):
            u.append(e[r] + g if case.ef else g)
            if at % period == 0:
                local[r] = kth(u[r], k)
            selected.append(np.flatnonzero(large(u[r], local[r])))
            if misses(local[r], len(selected[r]), k):
                local[r] = kth(u[r], k)
                selected[r] = np.flatnonzero(large(u[r], local[r]))
            local[r] = steer(local[r], len(selected[r]), 2 * k / 3, 5 * k / 4, 1.012)
        if at % cut_period == 0:
            cuts = np.array([np.frombuffer(take(r, "all_gather"), "<u4") for r in range(p)], dtype=np.int64)
            for r in range(p):
                mine = [selected[r][len(selected[r]) * j // p] if len(selected[r]) else n * j // p for j in range(1, p)]
                assert list(cuts[r]) == mine, f"step {index}: rank {r} would cut elsewhere"
            borders = [0, *(int(c) for c in cuts.sum(axis=0) // p), n]
        regions = [slice(borders[j], borders[j + 1]) for j in range(p)]
        part = []  # [rank] of what it selected, spread out
        for r in range(p):
            part.append(np.zeros(n, F))
            part[r][selected[r]] = u[r][selected[r]]
        sums = np.zeros(n, F)
        for owner, region in enumerate(regions):
            sums[region] = part[owner][region]
        for hop in range(1, p):
            for r in range(p):
                region = regions[(r + hop) % p]
                payload = take(r, "exchange") + take(r, "exchange")
                assert np.array_equal(sparse(payload, region.stop - region.start), part[r][region]), \
                    f"step {index}: rank {r} sends another part to rank {(r + hop) % p}"
                sums[region] += part[r][region]
        sizes = lambda r: np.frombuffer(take(r, "all_gather"), "<u8")  # noqa: E731  bytes and values

        def gather_sums():
            gathered = []
            for r in range(p):
                values = sums[regions[r]]
                values = values[values != 0]
                assert list(sizes(r)) == [4 * len(values), len(values)]
                assert np.array_equal(np.frombuffer(take(r, "all_gather_v"), "<f4"), values)
                gathered.append(values)
            return kth(np.concatenate(gathered), k)

        if at % period == 0:
            threshold = gather_sums()
        result = np.where(large(sums, threshold), sums, F(0))
        if misses(threshold, np.count_nonzero(result), k):
            for r, region in enumerate(regions):  # the sizes of parts that are not sent
                assert sizes(r)[1] == np.count_nonzero(result[region])
            threshold = gather_sums()
            result = np.where(large(sums, threshold), sums, F(0))
        kept = np.count_nonzero(result)
        for r, region in enumerate(regions):
            payload = take(r, "all_gather_v")
            assert list(sizes(r)) == [len(payload), np.count_nonzero(result[region])]
            assert np.array_equal(sparse(payload, region.stop - region.start), result[region])
            assert not said[r], f"step {index}: rank {r} says more"
        threshold = steer(threshold, kept, 2 * k / 3, 4 * k / 3, 1.008)
        for r in range(p):
            e[r] = u[r]
            e[r][selected[r][result[selected[r]] != 0]] = 0
        yield (result.astype(float) / p).astype(F)

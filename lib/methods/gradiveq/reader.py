"""Cycles of sampling and compressed steps; the bases are fitted here anew, from the aggregated samples."""
import numpy as np

import payloads

TOLERANCE = 2e-5  # components are float32, and float32 samples turn them by rounding


class Layer:
    def __init__(self, tensor, parameters):
        shape = tensor["shape"]
        self.part = slice(tensor["first"], tensor["first"] + tensor["elements"])
        self.filters = shape[0] * shape[1]
        self.taps = tensor["elements"] // self.filters
        if parameters["slice"] == "auto":
            fits = [c for c in range(1, self.taps + 1) if self.taps % c == 0 and c * self.filters >= 768]
            self.c = fits[0] if fits else self.taps
        else:
            self.c = min(self.taps, int(parameters["slice"]))
        self.k = self.c * self.filters
        self.slices = self.taps // self.c
        self.rows, self.sum, self.basis, self.mean = [], 0.0, None, None

    def cut(self, gradient):
        """(slices [S, K], leftover) of a gradient: the tensor transposed to taps first."""
        flat = gradient[self.part].reshape(self.filters, self.taps).T.ravel()
        return flat[: self.slices * self.k].reshape(self.slices, self.k), flat[self.slices * self.k:]

    def join(self, slices, rest):
        return np.concatenate([np.ravel(slices), rest]).reshape(self.taps, self.filters).T.ravel()

    def fit(self, parameters):
        x = np.array(self.rows, dtype=np.float64)
        self.mean = self.sum / len(x)
        if parameters["mean"] == "shared":
            self.mean = np.repeat(self.mean[:1], self.slices, axis=0)
        energy = np.sum(x * x)
        x = x - x.mean(axis=0)
        values, vectors = np.linalg.eigh(x @ x.T)
        values, vectors = values[::-1], vectors[:, ::-1]
        self.basis = None
        if not np.trace(x @ x.T) > 1e-15 * energy:
            return
        left, d = np.sum(np.maximum(values, 0)), 0
        allowed = float(parameters["lambda"]) * left
        while d < min(len(x) - 1, self.k) and left > allowed and values[d] > 1e-12 * values[0]:
            left -= values[d]
            d += 1
        if d == 0 or self.k < float(parameters["min_ratio"]) * d:
            return
        signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(len(x))])
        self.basis = ((x.T @ (vectors * signs))[:, :d] / np.sqrt(values[:d])).astype(np.float32)


def follow(case):
    p, n = case.ranks, case.n
    parameters = case.parameters
    lt, lc, warmup = (int(parameters[key]) for key in ("lt", "lc", "warmup"))
    layers = {}
    for index, tensor in enumerate(case.tensors):
        if tensor["kind"] == "conv" and len(tensor["shape"]) >= 2:
            layer = Layer(tensor, parameters)
            if 2 <= layer.k <= int(parameters["max_slice"]):
                layers[index] = layer
    sliced = sum(layer.slices * layer.k for layer in layers.values())
    phase = 0

    def summed(messages, position):
        assert all(rank[position][0] == "all_reduce_f32" for rank in messages)
        return sum(np.frombuffer(rank[position][1], dtype="<f4").astype(np.float64) for rank in messages)

    def others(message, compressing):
        """The result without the slices of compressed layers, and where their coefficients are."""
        result, at, places = np.zeros(n), 0, {}
        for index, tensor in enumerate(case.tensors):
            layer = layers.get(index)
            if layer is None or (compressing and layer.basis is None):
                result[tensor["first"]: tensor["first"] + tensor["elements"]] = message[at: at + tensor["elements"]]
                at += tensor["elements"]
                continue
            coefficients = layer.slices * layer.basis.shape[1] if compressing else 0
            rest = tensor["elements"] - layer.slices * layer.k
            places[index] = (at, message[at + coefficients: at + coefficients + rest])
            at += coefficients + rest
        return result, places, at

    for number, step in enumerate(case.steps):
        messages = step["messages"]
        if number < warmup:
            yield summed(messages, 0) / p
            continue
        if phase < lt:
            if parameters["sampling"] == "raw":
                result = summed(messages, 0) / p
            else:
                result, places, _ = others(summed(messages, 0) / p, False)
                last = [[m for m in rank if m[0] == "all_gather_v"][0][1] for rank in messages]
                row = np.zeros(sliced)
                for i in range(p):  # segment i was finished by rank i
                    first, end = sliced * i // p, sliced * (i + 1) // p
                    row[first:end] = payloads.module("qsgd").decode({"bits": "4", "bucket": "512"}, end - first, last[i])
                row /= p
                for index, layer in layers.items():
                    count = layer.slices * layer.k
                    result[layer.part] = layer.join(row[:count], places[index][1])
                    row = row[count:]
            result = result.astype(np.float32)
            for layer in layers.values():
                slices, _ = layer.cut(result)
                layer.sum = slices.astype(np.float64) + (layer.sum if phase else 0.0)
                layer.rows = (layer.rows if phase else []) + [slices[0]]
            phase += 1
            if phase == lt:
                for layer in layers.values():
                    layer.fit(parameters)
                assert len({rank[-1][1] for rank in messages}) == 1 and len(messages[0][-1][1]) == 8, "digests"
            yield result
            continue
        message = summed(messages, 0)
        result, places, end = others(message / p, True)
        votes = message[end:]
        for index, (at, rest) in places.items():
            layer = layers[index]
            d = layer.basis.shape[1]
            y = message[at: at + layer.slices * d].reshape(layer.slices, d)
            result[layer.part] = layer.join(y / p @ layer.basis.T.astype(np.float64) + layer.mean, rest)
            expected = sum((layer.cut(x.astype(np.float64))[0] - layer.mean) @ layer.basis for x in step["inputs"])
            assert np.max(np.abs(y - expected)) <= 1e-4 * np.max(np.abs(expected)), "coefficients"
        phase = 0 if phase + 1 == lt + lc or (len(votes) > 0 and 2 * votes[0] > p) else phase + 1
        yield result

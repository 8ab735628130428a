"""Values of elements that all ranks draw alike, and the key that says which they are."""
import numpy as np

from payloads.common import philox_bits


def subset(seed, n, count):
    """Floyd's method: `count` of n elements, ascending."""
    drawn = n - count if count > n // 2 else count
    words = philox_bits(seed, 0, 0xFFFFFFFF, 0, 2 * drawn)
    marked = set()
    for i in range(drawn):
        j = n - drawn + i
        t = (int(words[2 * i]) + (int(words[2 * i + 1]) << 32)) * (j + 1) >> 64
        marked.add(j if t in marked else t)
    return np.array(sorted(set(range(n)) - marked if count > n // 2 else marked), dtype=np.int64)


def decode(parameters, n, payload):
    if n == 0:
        return np.zeros(0, dtype=np.float32)
    k = min(max(int(np.floor(float(parameters["ratio"]) * n + 0.5)), 1), n)
    numbers = np.frombuffer(payload, dtype="<f4")
    assert len(numbers) == k + 5
    digits = numbers[k + 1:] / numbers[k]
    seed = sum(int(digit) << 12 * d for d, digit in enumerate(digits))
    out = np.zeros(n, dtype=np.float32)
    out[subset(seed, n, k)] = numbers[:k]
    return out

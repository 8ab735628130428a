"""How methods that choose among the elements of small chunks cut tensors: the README of sparseloco, section Payload."""
import numpy as np


def side(extent):
    if extent <= 64:
        return extent
    return max([d for d in range(32, 65) if extent % d == 0], default=64)


def cut(tensors, k):
    """For each chunk the number of its tensor, the indices of its elements as a matrix, and how many values it sends."""
    found = []
    for number, tensor in enumerate(tensors):
        shape, n = tensor["shape"], tensor["elements"]
        indices = tensor["first"] + np.arange(n)
        rows = shape[0] if len(shape) > 1 else n
        if rows > 1 and n // max(rows, 1) > 1:
            matrix = indices.reshape(rows, -1)
            height, width = side(rows), side(matrix.shape[1])
            parts = [matrix[i:i + height, j:j + width]
                     for i in range(0, rows, height) for j in range(0, matrix.shape[1], width)]
        else:
            whole, left = n // 4096 * 4096, n % 4096
            parts = list(indices[:whole].reshape(-1, 64, 64))
            if left >= 64:
                parts.append(indices[whole:whole + left // 64 * 64].reshape(-1, 64))
            if left % 64:
                parts.append(indices[n - left % 64:].reshape(1, -1))
        found += [(number, part, -(-k * part.size // 4096)) for part in parts]
    return found


def flat(n):
    """The tensors of n elements of which nothing is known."""
    return [{"shape": [n], "elements": n, "first": 0}]

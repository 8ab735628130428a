"""Rows are compared, sums pooled, steps and pieces chosen for all tables."""

import numpy as np

TOLERANCE = 1e-6
PIECE = 2**18
compared, deviations = 0, []


def expect(good, text):
    """Counts a comparison, and keeps what it says where it is not good."""
    global compared
    compared += 1
    if not good:
        deviations.append(text)


def near(where, got, wanted, tolerance=TOLERANCE, floor=1e-12):
    if wanted is None or got == "":
        good = wanted is None and got == ""
    elif isinstance(wanted, str):
        good = got == wanted
    elif np.isinf(wanted):
        good = float(got) == wanted
    else:
        good = abs(float(got) - wanted) <= tolerance * max(abs(wanted), floor)
    expect(good, f"{where}: the program says {got or 'nothing'}, SciPy {'nothing' if wanted is None else wanted}")


def compare(table, rows, keys, wanted, tolerance=TOLERANCE, floors=None):
    """Compares rows with a dictionary from the texts of their key columns to dictionaries of columns; neither may have more rows."""
    got = {tuple(row[key] for key in keys): row for row in rows}
    if len(got) != len(rows):
        deviations.append(f"{table}: rows with the same {keys}")
    for key in sorted(wanted.keys() - got.keys()):
        deviations.append(f"{table} {key}: the program has no such row")
    for key in sorted(got.keys() - wanted.keys()):
        deviations.append(f"{table} {key}: a row that should not be there")
    for key in sorted(wanted.keys() & got.keys()):
        for column, value in wanted[key].items():
            near(f"{table} {key} {column}", got[key][column], value, tolerance, (floors or {}).get(column, 1e-12))


def number(value):
    return f"{value:.15g}"


def ratio(a, b):
    return a / b if b else None


def pooled(tensors, sums_of, kinds):
    """Sums of each tensor, of `all`, and where wanted of the tensors of a kind, by name and kind. Sums are dictionaries of arrays."""
    result = {}
    for t in tensors:
        if not t["finite"]:
            continue
        sums = sums_of(t)
        result[t["name"], t["kind"]] = sums
        for group in [("all", "")] + ([("all", t["kind"])] if kinds else []):
            total = result.setdefault(group, {})
            for key, value in sums.items():
                total[key] = total.get(key, 0) + value
    return result


def done(rows):
    """Those of tensors that were not skipped."""
    return [row for row in rows if row["status"] != "skipped"]


def evenly(total, count):
    """Positions of at most `count` of `total` things, evenly spaced, the first and the last among them."""
    return list(range(total)) if total <= count else [i * (total - 1) // (count - 1) for i in range(count)]


def windows(iteration):
    """For each captured step, how many gaps lie before it: distances above the smallest one."""
    distance = np.diff(iteration)
    return np.concatenate([[0], np.cumsum(distance > distance.min())]) if len(distance) else np.zeros(1, int)


def rounded(value):
    return int(np.floor(value + 0.5))


def pieces(x):
    """Equal pieces, but for one element, of at most 2^18 elements."""
    count = -(-len(x) // PIECE)
    borders = [i * len(x) // count for i in range(count + 1)]
    return [x[borders[i]:borders[i + 1]] for i in evenly(count, 16)]


def nearest_rank(ordered, q):
    return ordered[max(0, int(np.ceil(q * len(ordered) - 1e-9)) - 1)]


def add(sums, key, *values):
    sums[key] = sums.get(key, 0) + np.array(values, dtype=float)


def constant(x):
    return x.var() <= 1e-10 * (x**2).mean()

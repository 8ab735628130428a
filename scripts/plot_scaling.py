#!/usr/bin/env python3
"""Draws scaling efficiency against the number of ranks, one panel for each network, from the modelled iterations of a table of
`gradtool bench --network ... --nodes 2,4,...,4096 --compute-ms X --csv`.

Usage: scripts/plot_scaling.py bench.csv [--out scaling.png] [--codec NAME ...] [--max-lines 8]

Without --codec, those are drawn that are on the Pareto front of any network, first the ones that are best somewhere.
"""
import argparse
import csv
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)


def read(path):
    """{network: {label: [(ranks, efficiency, on the front, codec), ...]}} and the first row, for titles."""
    networks, first = {}, None
    with open(path) as file:
        for row in csv.DictReader(file):
            if not row.get("scaling_efficiency"):
                continue
            first = first or row
            same = networks.setdefault(row["network"], {})
            label = row["codec"] + (":" + row["params"] if row["params"] else "")
            point = (int(row["ranks"]), float(row["scaling_efficiency"]), row["pareto"] in ("true", "True", "1"), row["codec"])
            best = same.setdefault(label, {})  # of the ways that the codec was replayed by
            best[point[0]] = max(best.get(point[0], point), point)
    return {network: {label: list(points.values()) for label, points in same.items()} for network, same in networks.items()}, first


def shorten(labels):
    """Labels without parameters, where the bare codec is in the table once."""
    codecs = [label.split(":")[0] for label in labels]
    return {label: codec if codecs.count(codec) == 1 else label for label, codec in zip(labels, codecs)}


def choose(networks, codecs, most):
    """The labels to draw, in every panel the same, and none first."""
    gain = {}  # over none, at best
    for lines in networks.values():
        base = {ranks: efficiency for ranks, efficiency, *_ in lines.get("none", [])}
        for label, points in lines.items():
            if points[0][3] in (codecs or []) or (not codecs and label not in ("none", "noop") and any(point[2] for point in points)):
                gain[label] = max(gain.get(label, 0.0), *(point[1] / base.get(point[0], 1.0) for point in points))
    return ["none"] + sorted(sorted(gain, key=gain.get, reverse=True)[:most - 1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--out", default="scaling.png")
    parser.add_argument("--codec", action="append")
    parser.add_argument("--max-lines", type=int, default=8)
    arguments = parser.parse_args()
    networks, first = read(arguments.table)
    if not networks:
        sys.exit(f"{arguments.table} has no modelled iterations: gradtool bench --network 10gbe --nodes 2,4,...,4096 --compute-ms X --csv")

    columns = min(2, len(networks))
    rows = -(-len(networks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6 * columns, 4 * rows + 0.4), squeeze=False, sharey=True)
    drawn = choose(networks, arguments.codec, arguments.max_lines)
    style = {label: {"color": f"C{i % 10}", "marker": "os^Dv<>pX*"[i % 10], "linewidth": 1.4} for i, label in enumerate(drawn)}
    style["none"] = {"color": "black", "linestyle": "--", "linewidth": 2, "zorder": 5}
    names = shorten(list(next(iter(networks.values()))))
    for axis, (network, lines) in zip(axes.flat, networks.items()):
        for label in (label for label in drawn if label in lines):
            points = sorted(lines[label])
            axis.plot([p[0] for p in points], [100 * p[1] for p in points], label=names.get(label, label), markersize=4, **style[label])
        ticks = sorted({point[0] for points in lines.values() for point in points})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(tick) for tick in ticks], rotation=45)
        axis.set_ylim(0, 102)
        axis.set_title(network)
        axis.set_xlabel("ranks")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small", loc="lower left")
    for axis in axes.flat[len(networks):]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("scaling efficiency, %")
    figure.suptitle(f"{first['model'] or first['file']}: {float(first['compute_ms']):g} ms of computation, {first['granularity']} units, "
                    f"overlap {first['overlap']}")
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=120)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()

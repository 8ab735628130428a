#!/usr/bin/env python3
"""DLCP: what packet losses do to a gradient, with and without marking large packets as important. Writes reports/reproduce/dlcp.md
and dlcp.png.

Usage: scripts/reproduce/dlcp.py [--gradtool PROGRAM] [--capture build/reproduce/resnet32.h5] [--out reports/reproduce]
"""
import os
import re
import sys

import common

STEPS = 10
RANDOM = ("0.003", "0.01", "0.03", "0.1", "0.2")
DRAINS = ("0.997", "0.99", "0.97", "0.95", "0.9", "0.8")
FIXED = ["--granularity", "model", "--timing", "isolated", "-n", 1]


def delivered(message, what):
    found = re.search(rf"{what}: ([0-9.e+-]+) %", message or "")
    return float(found.group(1)) if found else None


def at_loss(points, loss):
    """Error at a share of lost elements, linear between the points (loss, error); beyond the first through the origin."""
    points = [(0.0, 0.0), *sorted(points)]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x0 <= loss <= x1:
            return y0 + (y1 - y0) * (loss - x0) / (x1 - x0)
    return None


def share_of_first_tensor(capture):
    """Its share of the energy of worker 0's gradients, and of the elements."""
    import h5py
    import numpy as np
    with h5py.File(capture) as file:
        energy = [float(np.square(t["gradient"][:, 0].astype("f8")).sum()) for t in file["tensors"].values()]
        sizes = [t["gradient"].shape[2] for t in file["tensors"].values()]
    return energy[0] / sum(energy), sizes[0] / sum(sizes)


def main():
    options = common.arguments(__doc__.splitlines()[0], "resnet32")
    few = common.cut(options.capture, os.path.join(options.work, "dlcp-steps.h5"), 0, STEPS)
    kinds = {"at random": [f"dlcp:model=iid,loss={loss},bound=1" for loss in RANDOM],
             "by a queue, marked": [f"dlcp:model=importance,drain={drain},bound=1" for drain in DRAINS]}
    bounded = ["dlcp:model=iid,loss=0.2,bound=0.1", "dlcp:model=importance,drain=0.8,bound=0.1"]
    specs = [spec for group in kinds.values() for spec in group] + bounded
    one = common.bench(options, specs, [*FIXED, "--ranks", 1], capture=few)  # what one rank sends: a lost element is a zero
    all_ranks = common.bench(options, specs, FIXED, capture=few)
    ranks = int(all_ranks[0]["ranks"])

    lines, curves = [], {}
    for kind, group in kinds.items():
        for spec in group:
            alone, together = common.pick(one, spec), common.pick(all_ranks, spec)
            lost, error = alone["zeroed_fraction"], alone["nmse"]
            curves.setdefault(kind, []).append((lost, error))
            lines.append([kind, spec.split(":")[1].split(",")[1], 100 * lost, 100 * error, error / lost if lost else None, together["nmse"],
                          delivered(alone["message"], "important bytes delivered"), delivered(alone["message"], "droppable bytes delivered")])
    again = [[spec, 100 * common.pick(one, spec)["zeroed_fraction"], 100 * common.pick(one, spec)["nmse"],
              delivered(common.pick(one, spec)["message"], "bytes sent again"), common.pick(one, spec)["payload_ratio"]] for spec in bounded]

    figure, plot = common.axes(6.0, 3.6)
    for kind, points in curves.items():
        points = sorted(point for point in points if point[0] > 0)
        plot.plot([100 * lost for lost, _ in points], [100 * error for _, error in points], "o-", label=f"lost {kind}")
    plot.set(xscale="log", yscale="log", xlabel="elements lost, %", ylabel="energy of the gradient lost, %")
    plot.legend(fontsize=8)
    picture = common.save_plot(options, "dlcp", figure)

    compared = []
    for lost, error in sorted(curves["by a queue, marked"]):
        chance = at_loss(curves["at random"], lost)
        if lost > 0 and error > 0 and chance:
            compared.append((100 * lost, error / chance))
    against = ", ".join(f"{times:.2g} at {lost:.2g} %" for lost, times in compared) or "no loss rate in common"
    front = share_of_first_tensor(few)
    worst = common.pick(one, kinds["by a queue, marked"][-1])
    common.write_report(
        options, "dlcp", "DLCP: errors of lost packets, with and without marking",
        "Wang et al., arXiv 2008.08445 (MLT, NSDI 2024): training tolerates the loss of 0.6 to 3.5 % of the gradient at random with the same number "
        "of epochs, of large gradients only 0.1 %, of small ones 1.6 % or more; so the host marks packets, and switches drop unimportant ones first. "
        "(Figures from readers' notes of the papers.)",
        [f"ResNet-32 on CIFAR-10, {STEPS} steps from iteration 100, the model as one unit and one queue, packets of 1436 bytes, nothing sent again (bound=1). Whether a network "
         "trains on cannot be replayed; what can is the share of the gradient's energy that is lost with a share of its elements. "
         f"Of one rank; the column nmse is of the average of {ranks} ranks that lose packets of their own:",
         common.table(["packets lost", "setting", "elements lost %", "energy lost %", "energy / elements", f"nmse, {ranks} ranks", "important delivered %",
                       "droppable delivered %"], lines), picture,
         "With DLCP's bound, 10 % of a tensor, at the highest of these losses:",
         common.table(["codec", "elements lost %", "energy lost %", "bytes sent again %", "payload ratio"], again),
         "**What comes out, and where it differs.** Packets lost at random cost energy in proportion to their number, give or take the few packets that hold much. "
         f"The energy that the marked queue loses, as a multiple of what the same share lost at random costs: {against}. Below 1 marking protects the gradient, as the papers say. "
         f"Above 1, at the smallest losses: the queue starts full, so the first packets of a step go, and the first layer has {100 * front[0]:.1f} % of the "
         f"energy in {100 * front[1]:.2f} % of the elements; the method gives front layers away on purpose, because they are needed first. At the largest losses the queue has to give up important "
         f"packets too ({100 - (delivered(worst['message'], 'important bytes delivered') or 100):.1f} % of their bytes at the lowest drain). "
         "A packet of 359 neighbours differs in magnitude from the next less than elements do, which limits what marking can gain. "
         "The statistic (mean magnitude of a packet against the tensor's running median), the queue and its drain are our reconstruction; the tolerated "
         "rates are a property of training and are not tested here."],
        ["gradtool bench resnet32.h5 --granularity model --ranks 1 --codec dlcp:model=iid,loss=0.03,bound=1 --codec dlcp:model=importance,drain=0.9,bound=1"])


if __name__ == "__main__":
    sys.exit(main())

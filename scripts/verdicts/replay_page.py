"""The page on what a replay says about training."""
import csv
import os
import re

import predictor_page
from layout import number, save, signed, table, write
from results import interval, rank_correlation, safe_error

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MOST_LOST = 1.0  # points of accuracy: what the limit on the error is to keep codecs from


GROUPS = {"all": lambda row: True, "with a memory": lambda row: row["delays"] == "1", "without": lambda row: row["delays"] == "0"}
ERRORS = {"nmse": lambda row: float(row["nmse"]), "cumulative_nmse": lambda row: float(row["cumulative_nmse"]),
          "the judged one": lambda row: float(row["cumulative_nmse" if row["delays"] == "1" else "nmse"])}


def lost_points(row, results):
    """Points of accuracy that the arm lost in training; one that diverged lost all that none had."""
    arm, none = results.arm(row["campaign"], row["arm"]), results.arm(row["campaign"], "none")
    if arm.diverged or not arm.accuracy:
        return 100 * interval(list(none.accuracy.values()))[0]
    return -results.difference(arm, none).mean


def loss_bounds(row, results):
    """The 95 % interval of lost_points(); without bounds where there is none."""
    gap = results.against_none(results.arm(row["campaign"], row["arm"]))
    if gap.diverged:
        return lost_points(row, results), lost_points(row, results)
    low, high = gap.bounds()
    return (None, None) if low is None else (-high, -low)


def default_limit():
    with open(os.path.join(ROOT, "lib", "advice", "acceptance.hpp")) as file:
        return float(re.search(r"kDefaultMaxNmse = ([0-9.e+-]+);", file.read()).group(1))


def replay_page(results, out):
    points = []
    for row in results.replay:
        if row["campaign"] in results.arms:
            low, high = loss_bounds(row, results)
            points.append({**row, "lost": lost_points(row, results), "lost_low": low, "lost_high": high, "certain": low is not None and low > 0})
    used = [row for row in points if row["reached"] == "1" and row["nmse"] and row["cumulative_nmse"]]
    parts = ["# What a replay says about training"]
    if not used:
        write(os.path.join(out, "replay.md"), [*parts, "Nothing was replayed."], results.quick)
        return
    columns = ["campaign", "moment", "first_step", "last_step", "arm", "delays", "nmse", "cumulative_nmse", "payload_ratio", "lost", "lost_low", "lost_high", "certain"]
    with open(os.path.join(out, "replay.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(used)
    rows = []
    for campaign, moment in dict.fromkeys((row["campaign"], row["moment"]) for row in used):
        for group, belongs in GROUPS.items():
            mine = [row for row in used if (row["campaign"], row["moment"]) == (campaign, moment) and belongs(row)]
            cells = []
            for error in ERRORS.values():
                rho, low, high = rank_correlation([(row["codec"], error(row), row["lost"]) for row in mine])
                cells.append("" if rho is None else f"{rho:+.2f} ({low:+.2f} to {high:+.2f})")
            rows.append([campaign, moment, group, str(len(mine)), *cells])
    judged = ERRORS["the judged one"]
    today = default_limit()
    worse = [row for row in used if row["lost"] > MOST_LOST]
    below = sorted({row["arm"] for row in worse if judged(row) <= today})
    above = sorted({row["arm"] for row in used if judged(row) > today and row["lost"] <= MOST_LOST})
    limits = {name: safe_error([(error(row), row["lost"]) for row in used], MOST_LOST) for name, error in ERRORS.items()}
    each = [f"{name}: {number(limit) or 'none'}" for name, limit in limits.items()]
    first = min(worse, key=judged) if worse else None
    safe = limits["the judged one"]
    certain = safe_error([(judged(row), row["lost"] if row["certain"] else 0.0) for row in used], MOST_LOST)
    parts += ["`bench` replays gradients of a training without codecs. Does its error say what a codec costs when it takes part? The same arms were "
              "replayed on captures of the same model, data "
              "and optimiser (none of whose steps had a codec), early and in the middle, and trained with. `cumulative_nmse` is the error of the "
              "sum over the captured steps; the judged "
              "one is that for codecs with a memory and `nmse` for others, as `bench --advise` has it. Codecs that were not at work in the captured "
              "steps are left out.",
              "**Spearman's rank correlation** of the error with the points of accuracy lost, and its 95 % interval (bootstrap over codecs, with "
              "all arms of each):",
              table(["training", "captured", "codecs", "arms", *ERRORS], rows), "![errors against points lost](replay.svg)",
              f"**A limit on the error.** The largest error up to which no arm lost more than {MOST_LOST:g} point, over all captures: "
              f"{'; '.join(each)}. "
              + (f"The first that lost more, by the judged error, is `{first['arm']}` ({first['campaign']}, {first['moment']}): an error of {number(judged(first))} and "
                 f"{first['lost']:.2f} points. " if first else "No arm lost more. ")
              + (f"**{number(safe)}** is what these trainings propose for the default of `--max-nmse`, which is {today:g} today. " if safe is not None else
                 "No limit keeps every arm out that lost more. ")
              + (f"Where only those count whose 95 % interval lies below 0, it is {number(certain)}. " if certain is not None else "")
              + (f"Accepted at {today:g} today, and lost more than a point: {', '.join(f'`{name}`' for name in below)}. " if below else
                 f"Nothing that lost more than a point is accepted at {today:g}. ")
              + (f"Refused, at least on one capture, and lost a point at most: {', '.join(f'`{name}`' for name in above)}." if above else "")]
    firsts, kept, broken = [], [], []
    for name in dict.fromkeys(row["campaign"] for row in used):
        losers = [row for row in worse if row["campaign"] == name]
        (broken if any(judged(row) <= today for row in losers) else kept).append(name)
        firsts.append([name] + [f"{number(judged(least))}, `{least['arm']}`" if (least := min(those, key=judged, default=None)) else "none lost as much"
                                for those in (losers, [row for row in losers if row["certain"]])])
    parts += [f"**By training**, the smallest judged error of an arm that lost more than {MOST_LOST:g} point:\n\n"
              + table(["training", "in the mean", "with its whole interval below 0"], firsts)
              + f"\n\nNo error up to the default of {today:g} went with such a loss in: {', '.join(kept) or 'none of them'}. Smaller errors did in: "
              f"{', '.join(broken) or 'none of them'}. So that limit sorts out what is hopeless for the former, and is no promise. Without `--max-nmse` "
              "`bench --advise` takes a codec only where also its error of a step is no larger than one up to which at most one arm in twenty lost more than a "
              "point and none more than three (`scripts/verdicts/trained_arms.py` gives it this table). Unbiased codecs have a limit of their own; errors of the others count "
              "more where those of two steps correlate. What errs more needs a trial."]
    lines = [[row["campaign"], row["moment"], f"{row['first_step']} to {row['last_step']}", f"`{row['arm']}`", "yes" if row["delays"] == "1" else "no",
              number(float(row["nmse"])), number(float(row["cumulative_nmse"])), signed(row["lost"])]
             for row in sorted(used, key=lambda row: (row["campaign"], row["moment"], judged(row)))]
    parts += ["Points lost are means over seeds, with the noise that [all arms](all.md) shows: of small losses the order is chance, which draws "
              "correlations to 0. The same as CSV: "
              "[replay.csv](replay.csv).", table(["training", "captured", "steps", "arm", "memory", "nmse", "cumulative nmse", "points lost"], lines)]
    tried = [{**row, "lost": lost_points(row, results), "model": results.campaigns[row["campaign"]]["model"]} for row in results.predictors if row["campaign"] in results.arms]
    parts[-1:-1] = predictor_page.section(tried, results.unbiased)
    write(os.path.join(out, "replay.md"), parts, results.quick)
    scatter(os.path.join(out, "replay.svg"), used, judged, today)


def scatter(path, used, judged, today):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gradtool", "font.size": 8})
    names = list(dict.fromkeys(row["campaign"] for row in used))
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, plots = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False)
    for plot in plots.flat[len(names):]:
        plot.remove()
    for name, plot in zip(names, plots.flat):
        for delays, marker, label in (("1", "o", "with a memory"), ("0", "x", "without")):
            for moment, colour in (("early", "#c60"), ("middle", "#06c")):
                mine = [row for row in used if (row["campaign"], row["delays"], row["moment"]) == (name, delays, moment)]
                plot.plot([max(judged(row), 1e-8) for row in mine], [row["lost"] for row in mine], marker, color=colour, markersize=3.5,
                          label=f"{label}, {moment}")
        plot.axvline(today, color="#999", linewidth=0.8)
        plot.axhline(MOST_LOST, color="#c66", linewidth=0.8, linestyle="--")
        plot.set_xscale("log")
        plot.set_yscale("symlog", linthresh=1)
        plot.margins(0.06)  # in the scales just set: else the largest losses lie half outside
        plot.set(title=name, xlabel=f"judged error of the replay (line: --max-nmse {today:g})", ylabel="points of accuracy lost")
    plots.flat[0].legend(fontsize=6)
    figure.tight_layout()
    save(figure, path)

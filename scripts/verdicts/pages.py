#!/usr/bin/env python3
"""Writes a page for each method, with a verdict, from the CSVs that run.py left.

    pages.py FOLDER --out reports/verdicts

The CSVs that the pages rest on are copied to OUT/data, without times, and `pages.py OUT/data --out OUT` writes the same pages again.
"""
import argparse
import csv
import math
import os
import re
import statistics
import sys

import claims
from results import Results, difference, interval, rank_correlation, read_csv, safe_error

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEPT = ("codec", "params", "seed", "epoch", "step", "status", "learning_rate", "train_loss", "test_loss", "test_accuracy", "wire_bytes", "payload_bytes")
MOST_LOST = 1.0  # points of accuracy: what the limit on the error is to keep codecs from


def number(x, digits=3):
    if x is None or math.isnan(x):
        return ""
    return f"{x:,.0f}" if abs(x) >= 10 ** (digits - 1) else f"{x:.{digits}g}"


def signed(x):
    return "" if x is None or math.isnan(x) else f"{x + 0.0:+.2f}"


def span(gap):
    return "" if gap is None or gap.low is None else f"{gap.low:+.2f} to {gap.high:+.2f}"


def table(header, rows):
    """A Markdown table, without the columns in which nothing stands."""
    used = [i for i in range(len(header)) if any(row[i] != "" for row in rows)]
    lines = ["| " + " | ".join(header[i] for i in used) + " |", "| " + " | ".join("---" for _ in used) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row[i] for i in used) + " |" for row in rows])


def gap_text(gap):
    if gap is None:
        return ""
    return signed(gap.mean) + (" (a run diverged)" if gap.diverged else "")


def epochs(state):
    return f"{int(state['steps']) / int(state['steps_per_epoch']):.1f} epochs"


WHOLE = {"fashion-mnist": 60000, "cifar10": 50000}  # training images


def data(state):
    """The data set, and how much of it: an epoch has as many whole batches as there are."""
    if state["dataset"] not in WHOLE or not state["steps_per_epoch"]:
        return state["dataset"]
    used = int(state["steps_per_epoch"]) * int(state["workers"]) * int(state["batch"])
    share = used / WHOLE[state["dataset"]]
    return state["dataset"] if share > 0.99 else f"{100 * share:.0f} % of {state['dataset']} (some {used:,} training images)"


def trial_row(trial, outcome):
    needed = "" if trial.points is None else f"{0 - trial.points:+.1f}"
    wanted = "" if trial.ratio is None else f"{number(trial.ratio)} ({trial.kind})"
    against = trial.against[1] if trial.against else "none"
    if trial.against and trial.against[0] != trial.campaign:
        against += f" in {trial.against[0]}"
    name = outcome.arm.name if outcome else trial.arm
    found = ["", "", "", "not run"] if outcome is None else [
        gap_text(outcome.difference), span(outcome.difference), number(outcome.ratio) if trial.ratio else "",
        ("**passes**" if outcome.passes else "**fails**") + (", close" if outcome.close else "")]
    return [trial.says, trial.campaign, f"`{name}`", f"`{against}`", found[0], found[1], needed, found[2], wanted, found[3]]


TRIALS = ["part of the claim", "campaign", "arm", "against", "difference, points", "95 % interval", "at least", "ratio", "at least ", "trial"]
ARMS = ["campaign", "arm", "accuracy %", "minus none, points", "95 % interval", "payload ratio", "wire ratio"]


def arm_row(arm, results):
    gap = results.against_none(arm)
    mean = 100 * interval(list(arm.accuracy.values()))[0] if arm.accuracy else math.nan
    return [arm.campaign, f"`{arm.name}`", f"{mean:.2f}" if arm.accuracy else "diverged", gap_text(gap), span(gap),
            number(results.ratio(arm, "payload")), number(results.ratio(arm, "wire"))]


def mind(outcomes):
    """Returns sentences on which results would change our mind, so far as the figures say it."""
    ran = [o for o in outcomes if o]
    sentences = []

    def listed(chosen, text):
        return ", ".join(dict.fromkeys(f"`{o.arm.name}` in {o.trial.campaign}{text(o)}" for o in chosen))
    close = [o for o in ran if o.close]
    if close:
        sentences.append("More seeds may turn the close calls: "
                         + listed(close, lambda o: f" ({span(o.difference) or 'no interval'} around a limit of {0 - o.trial.points:+.1f}, "
                                  f"{o.difference.pairs} pairs)") + ".")
    failed = [o for o in ran if not o.passes and not o.close]
    worse = [o for o in failed if o.difference and (o.difference.diverged or o.difference.mean < -o.trial.points)]
    if worse:
        sentences.append("A longer training, a larger model, or a learning rate of its own that brings it to the limit would, for what clearly fails: "
                         + listed(worse, lambda o: "") + ".")
    heavy = [o for o in failed if o not in worse]
    if heavy:
        sentences.append("A model for which they are fewer would, for what fails by its bytes: " + listed(heavy, lambda o: "") + ".")
    clear = sum(o.passes and not o.close for o in ran)
    if clear:
        sentences.append(f"A training of full size in which the same arm ends below its limit would, for what passes clearly ({clear} of {len(ran)}).")
    if len(ran) < len(outcomes):
        sentences.append("Trials that were not run count neither way yet.")
    return " ".join(sentences)


def forest(path, rows, limit):
    """A line for each arm: the mean difference to none with its interval. rows: (label, Difference)."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gradtool", "font.size": 8})
    figure, plot = plt.subplots(figsize=(7.2, 0.8 + 0.2 * len(rows)))
    least = min([-limit * 5, *(gap.mean for _, gap in rows if not math.isnan(gap.mean))])
    for y, (_, gap) in enumerate(rows):
        if math.isnan(gap.mean):
            plot.text(least, y, "diverged", va="center")
            continue
        low, high = (gap.mean, gap.mean) if gap.low is None else (gap.low, gap.high)
        plot.plot([max(low, least - 3), min(high, 5)], [y, y], color="#8aa")
        plot.plot([gap.mean], [y], "o", color="#244", markersize=3)
    plot.axvline(0, color="#999", linewidth=0.8)
    plot.axvline(-limit, color="#c66", linewidth=0.8, linestyle="--")
    plot.set(yticks=range(len(rows)), xlabel="accuracy minus none, points, and its 95 % interval")
    plot.set_yticklabels([label for label, _ in rows], fontfamily="monospace", fontsize=7)
    plot.invert_yaxis()
    figure.tight_layout()
    save(figure, path)


def save(figure, path):
    import matplotlib.pyplot as plt
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def loss_paragraph(results):
    """DLCP: the largest loss at which accuracy is still none's, within its interval."""
    measured = {}
    for row in results.losses:
        measured.setdefault(row["arm"], []).append(float(row["lost"]))
    if not measured or "lenet5-dlcp" not in results.arms:
        return ""
    lines, sentences = [], []
    for kind, word in (("model=iid", "at random"), ("model=importance", "large packets marked")):
        found = sorted((statistics.fmean(lost), arm) for arm, lost in measured.items() if kind in arm)
        equal = None
        most = max((lost for lost, _ in found), default=0.0)
        unbroken = True
        for lost, name in found:
            gap = difference(results.arm("lenet5-dlcp", name), results.arm("lenet5-dlcp", "none"))
            same = not gap.diverged and gap.high is not None and gap.low <= 0 <= gap.high
            unbroken = unbroken and (same or (gap.low is not None and gap.low > 0))
            if unbroken:
                equal = lost
            lines.append([word, f"`{name}`", f"{100 * lost:.2f}", gap_text(gap), span(gap), "yes" if same else "no"])
        reached = "at none of these losses" if equal is None else (
            f"up to {100 * equal:.1f} % of the elements lost" + (", the most that was tried" if equal == most else ""))
        sentences.append(f"{word}, {reached}")
    return (f"**The loss at which the final accuracy still equals none's within its interval:** {'; '.join(sentences)}. Losses are measured on captures of the same "
            "model, of one rank's elements that are not zero. An element that was zero before does not count as lost, so that the share of "
            "packets is higher, above all where small packets are the ones that go.\n\n"
            + table(["lost", "arm", "elements lost %", "minus none, points", "95 % interval", "interval has 0"], lines))


def page(claim, results, out, paper):
    outcomes = [claims.outcome(trial, results) for trial in claim.trials]
    word = claims.verdict(outcomes)
    ran = sum(o is not None for o in outcomes)
    passed = sum(bool(o and o.passes) for o in outcomes)
    used = dict.fromkeys(name for o in outcomes if o for name in (o.arm.campaign, o.against.campaign))
    rows = sorted(claims.relevant(claim, results), key=lambda arm: (list(results.campaigns).index(arm.campaign)))
    parts = [f"# {claim.method}: {word}", f"**The claim.** {claim.title}. {claim.text} ({claim.paper}.)",
             f"**The verdict: {word}.** {passed} of {ran} trials that ran "
             f"pass" + (f"; {len(outcomes) - ran} did not run" if ran < len(outcomes) else "") + ".",
             "**The rule.** A trial passes when the mean difference of final accuracy, over pairs of runs with the same seed, is at least the "
             "limit, and the ratio of bytes "
             "(headers, indices and bitmaps counted) at least the one given. All trials that ran pass: holds; some: holds in part; none: does not "
             "hold here. "
             "*Close*: the 95 % interval (Student's t) reaches across the limit.",
             table(TRIALS, [trial_row(t, o) for t, o in zip(claim.trials, outcomes)])]
    if paper and claim.method == "dlcp" and (text := loss_paragraph(results)):
        parts.append(text)
    if rows:
        if paper:
            forest(os.path.join(out, f"{claim.method}.svg"), [(f"{a.campaign}  {a.name}", gap) for a in rows if (gap := results.against_none(a))], 1.0)
            parts.append(f"![{claim.method}: accuracy minus none]({claim.method}.svg)")
        parts.append("Everything of this kind that was trained, beside `none` (with momentum, where a method brings momentum of its "
                     "own):\n\n" + table(ARMS, [arm_row(arm, results) for arm in rows]))
    if used:
        commands = "\n".join(results.campaigns[name]["command"] for name in used)
        said = "; ".join(f"{name}: {state['steps']} steps ({epochs(state)}), seeds {state['seeds']}, {state['workers']} workers x {state['batch']}, {data(state)}"
                         for name, state in ((name, results.campaigns[name]) for name in used))
        parts.append(f"**What was run.** {said}.\n\n```sh\n{commands}\n```")
    parts += [f"**What would change our mind.** {mind(outcomes) or 'A run of the trials.'}", f"**What was scaled down.** {claim.smaller}",
              f"Figures: [data](data/campaigns.csv); method: [lib/methods/{claim.method}](../../lib/methods/{claim.method}/README.md)."]
    write(os.path.join(out, claim.method + ".md"), parts, results.quick)
    return outcomes, word


def write(path, parts, quick):
    """quick: the run was of few steps, which every page then says below its title."""
    if quick:
        parts = [parts[0], "**This was a quick run to try the scripts: a few steps with two seeds, from which no verdict follows.**", *parts[1:]]
    with open(path, "w") as file:
        file.write("\n\n".join(parts) + "\n")


def overview(judged, results, out):
    rows = []
    for claim, outcomes, word in judged:
        ran = [o for o in outcomes if o]
        # The figures are those of the first trial, the claim's own setting.
        o = ran[0] if ran else None
        rows.append([f"[{claim.method}]({claim.method}.md)", claim.title, f"**{word}**", f"{sum(x.passes for x in ran)} of {len(ran)}" if ran else "",
                     *(["", "", "", "", "", ""] if not o else [
                         str(sum(x.close for x in ran)), f"`{o.arm.name}`", gap_text(o.difference), span(o.difference),
                         number(results.ratio(o.arm, "payload")), number(results.ratio(o.arm, "wire"))])])
    header = ["method", "claim", "verdict", "trials passed", "close", "first trial's arm", "accuracy minus what it is compared with, points",
              "95 % interval", "payload ratio", "wire ratio"]
    states = list(results.campaigns.values())
    parts = ["# Do the papers' claims about accuracy hold here?"]
    parts += ["Each method was trained with its codec in the loop by `gradtool train`, beside uncompressed training from the same seeds. Each page "
              "has the claim, the rule, the figures and "
              "what would change our mind. The words: *holds* (all trials that ran pass), *holds in part* (some), *does not hold here* (none); "
              "*close* counts trials whose 95 % "
              "interval reaches across their limit. Small models, trained for minutes: a claim that does not hold here may hold where it was made.",
              table(header, rows[:len(claims.PAPERS)]), "Ten methods that the papers are compared with:", table(header, rows[len(claims.PAPERS):]),
              "[All arms of all campaigns](all.md); [what a replay says about training](replay.md).",
              "## What ran", table(["campaign", "state", "model", "data", "steps", "seeds"],
                                  [[s["campaign"], ": ".join(filter(None, (s["status"], s["reason"]))), s["model"], data(s), s["steps"], s["seeds"]]
                                   for s in states]),
              "```sh\nscripts/verdicts/run.py --out FOLDER --cifar CIFAR10_FOLDER --text TEXT\nscripts/verdicts/pages.py FOLDER --out "
              "reports/verdicts\n```",
              "Trained by " + ", ".join(dict.fromkeys(s["gradtool"] for s in states if s["gradtool"])) + "."]
    write(os.path.join(out, "README.md"), parts, results.quick)
    arms = [arm_row(arm, results) for found in results.arms.values() for arm in found.values()]
    write(os.path.join(out, "all.md"), ["# All arms of all campaigns", "Differences are to `none` of the same campaign, or of lenet5 where the "
                                        "campaign has another optimiser for a method's sake, over pairs with the same seed, with the 95 % interval of "
                                        "Student's t. A wire ratio is for four "
                                        "workers.", table(ARMS, arms) if arms else "Nothing was run."], results.quick)


# ---- Replay against training ----

GROUPS = {"all": lambda row: True, "with a memory": lambda row: row["delays"] == "1", "without": lambda row: row["delays"] == "0"}
ERRORS = {"nmse": lambda row: float(row["nmse"]), "cumulative_nmse": lambda row: float(row["cumulative_nmse"]),
          "the judged one": lambda row: float(row["cumulative_nmse" if row["delays"] == "1" else "nmse"])}


def lost_points(row, results):
    """Points of accuracy that the arm lost in training; one that diverged lost all that none had."""
    arm, none = results.arm(row["campaign"], row["arm"]), results.arm(row["campaign"], "none")
    if arm.diverged or not arm.accuracy:
        return 100 * interval(list(none.accuracy.values()))[0]
    return -difference(arm, none).mean


def loses_certainly(row, results):
    """Whether the interval of the arm's difference lies below 0, or a run of it diverged."""
    gap = results.against_none(results.arm(row["campaign"], row["arm"]))
    return gap.diverged or (gap.high is not None and gap.high < 0)


def default_limit():
    with open(os.path.join(ROOT, "lib", "bench", "result.hpp")) as file:
        return float(re.search(r"kDefaultMaxNmse = ([0-9.e+-]+);", file.read()).group(1))


def replay_page(results, out):
    points = [{**row, "lost": lost_points(row, results), "certain": loses_certainly(row, results)}
              for row in results.replay if row["campaign"] in results.arms]
    used = [row for row in points if row["reached"] == "1" and row["nmse"] and row["cumulative_nmse"]]
    parts = ["# What a replay says about training"]
    if not used:
        write(os.path.join(out, "replay.md"), [*parts, "Nothing was replayed."], results.quick)
        return
    columns = ["campaign", "moment", "first_step", "last_step", "arm", "delays", "nmse", "cumulative_nmse", "payload_ratio", "lost", "certain"]
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
              "`bench --advise` takes a codec only where also its error of a step is no larger than one up to which no arm lost more than a point "
              "(`scripts/verdicts/trained_arms.py` gives it this table); what errs more needs a trial."]
    lines = [[row["campaign"], row["moment"], f"{row['first_step']} to {row['last_step']}", f"`{row['arm']}`", "yes" if row["delays"] == "1" else "no",
              number(float(row["nmse"])), number(float(row["cumulative_nmse"])), signed(row["lost"])]
             for row in sorted(used, key=lambda row: (row["campaign"], row["moment"], judged(row)))]
    parts += ["Points lost are means over seeds, with the noise that [all arms](all.md) shows: of small losses the order is chance, which draws "
              "correlations to 0. The same as CSV: "
              "[replay.csv](replay.csv).", table(["training", "captured", "steps", "arm", "memory", "nmse", "cumulative nmse", "points lost"], lines)]
    write(os.path.join(out, "replay.md"), parts, results.quick)
    scatter(os.path.join(out, "replay.svg"), used, judged, today)


def scatter(path, used, judged, today):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gradtool", "font.size": 8})
    names = list(dict.fromkeys(row["campaign"] for row in used))
    figure, plots = plt.subplots(1, len(names), figsize=(4.2 * len(names), 3.2), squeeze=False)
    for name, plot in zip(names, plots[0]):
        for delays, marker, label in (("1", "o", "with a memory"), ("0", "x", "without")):
            for moment, colour in (("early", "#c60"), ("middle", "#06c")):
                mine = [row for row in used if (row["campaign"], row["delays"], row["moment"]) == (name, delays, moment)]
                plot.plot([max(judged(row), 1e-8) for row in mine], [row["lost"] for row in mine], marker, color=colour, markersize=3.5,
                          label=f"{label}, {moment}")
        plot.axvline(today, color="#999", linewidth=0.8)
        plot.axhline(MOST_LOST, color="#c66", linewidth=0.8, linestyle="--")
        plot.set_xscale("log")
        plot.set_yscale("symlog", linthresh=1)
        plot.set(title=name, xlabel="judged error of the replay (line: today's limit)", ylabel="points of accuracy lost")
    plots[0][0].legend(fontsize=6)
    figure.tight_layout()
    save(figure, path)


def copy_data(source, out):
    """The CSVs, without what was measured in seconds."""
    target = os.path.join(out, "data")
    if os.path.realpath(source) == os.path.realpath(target):
        return
    states = read_csv(os.path.join(source, "campaigns.csv"))
    for name in ("campaigns.csv", "arms.csv", "codecs.csv", "replay.csv", "losses.csv"):
        keep(os.path.join(source, name), os.path.join(target, name), None)
    for state in states:
        if state["status"] == "complete":
            keep(os.path.join(source, state["campaign"], "train.csv"), os.path.join(target, state["campaign"], "train.csv"), KEPT)


def keep(source, target, columns):
    rows = read_csv(source)
    if not rows:
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w", newline="") as file:
        writer = csv.DictWriter(file, columns or rows[0].keys(), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what run.py --out wrote, or the folder data of earlier pages")
    parser.add_argument("--out", required=True, help="folder of the pages")
    options = parser.parse_args(arguments)
    if not os.path.exists(os.path.join(options.folder, "campaigns.csv")):
        print(f"pages.py: {options.folder} has no campaigns.csv; run.py --out writes one", file=sys.stderr)
        return 3
    os.makedirs(options.out, exist_ok=True)
    results = Results(options.folder)
    judged = [(claim, *page(claim, results, options.out, claim in claims.PAPERS)) for claim in claims.PAPERS + claims.BASELINES]
    overview(judged, results, options.out)
    replay_page(results, options.out)
    copy_data(options.folder, options.out)
    for claim, outcomes, word in judged:
        print(f"{claim.method:10} {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

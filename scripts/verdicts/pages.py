#!/usr/bin/env python3
"""Writes a page for each method, with a verdict, from the CSVs that run.py left.

    pages.py FOLDER [FOLDER ...] --out reports/verdicts [--before CSV]

Of several folders each adds its complete campaigns to those of the ones before it, or takes their place: `pages.py OUT/data NEW --out OUT`.
The CSVs that the pages rest on are copied to OUT/data, without times, and `pages.py OUT/data --out OUT` writes the same pages again.
OUT/verdicts.csv has all trials with their words; given as --before to a later run, it makes that one list what has changed.
"""
import argparse
import csv
import math
import os
import shutil
import statistics
import sys
import tempfile
import types

import campaigns
import claims
from layout import between, data, epochs, gap_text, number, save, signed, span, table, write
from replay_page import replay_page
from results import NEAR, Results, interval, read_csv

KEPT = ("codec", "params", "seed", "lr_factor", "judged", "epoch", "step", "status", "learning_rate", "train_loss", "test_loss", "test_accuracy", "wire_bytes", "payload_bytes")
LITTLE_POWER = 0.2  # a trial that holds less often for an arm that loses nothing is named as one that can hardly hold


def against_text(outcome):
    other = "" if outcome.arm.campaign == outcome.against.campaign else f" in {outcome.against.campaign}"
    return outcome.against.name + other


def trial_row(trial, outcome):
    needed = "" if trial.points is None else f"{0 - trial.points:+.1f}"
    wanted = "" if trial.ratio is None else f"{number(trial.ratio)} ({trial.kind})"
    if outcome is None:
        return [trial.says, trial.campaign, f"`{trial.arm}`", "", "", "", "", needed, "", wanted, "", "not run"]
    power = "" if outcome.power is None else f"{100 * outcome.power:.0f}"
    why = "" if outcome.sends else ", by its bytes"
    return [trial.says, trial.campaign, f"`{outcome.arm.name}`", f"`{against_text(outcome)}`", gap_text(outcome.difference), span(outcome.difference),
            between(*outcome.bounds), needed, number(outcome.ratio) if trial.ratio else "", wanted, power, f"**{outcome.word}**{why}"]


TRIALS = ["part of the claim", "campaign", "arm", "against", "difference, points", "95 % interval", "with Holm's correction", "at least", "ratio",
          "at least ", "power %", "trial"]
ARMS = ["campaign", "arm", "accuracy %", "minus none, points", "95 % interval", "payload ratio", "wire ratio"]


def arm_row(arm, results):
    gap = results.against_none(arm)
    rate = "" if arm.rate == 1.0 else f", {arm.rate:g} times the rate"
    mean = 100 * interval(list(arm.accuracy.values()))[0] if arm.accuracy else math.nan
    return [arm.campaign, f"`{arm.name}`{rate}", f"{mean:.2f}" if arm.accuracy else "diverged", gap_text(gap), span(gap) + ("" if not gap or gap.pooled or gap.error is None else " *"),
            number(results.ratio(arm, "payload")), number(results.ratio(arm, "wire"))]


def listed(chosen, text=lambda _: ""):
    return ", ".join(dict.fromkeys(f"`{o.arm.name}` in {o.trial.campaign}{text(o)}" for o in chosen))


def missed_by_every_seed(outcome):
    """Whether the difference misses the limit with each seed by itself."""
    gaps = [100 * (outcome.arm.accuracy[seed] - outcome.against.accuracy[seed]) for seed in outcome.arm.accuracy if seed in outcome.against.accuracy]
    return bool(gaps) and max(gaps) < -outcome.trial.points


def mind(outcomes):
    """Returns sentences on which results would change our mind, so far as the figures say it."""
    ran = [o for o in outcomes if o]
    sentences = []
    if undecided := [o for o in ran if o.word == claims.UNDECIDED]:
        sentences.append("More seeds would decide: " + listed(undecided, lambda o: f" ({between(*o.bounds) or 'no interval'} around a limit of "
                                                              f"{0 - o.trial.points:+.1f}, {o.difference.pairs} pairs)") + ".")
        if every := [o for o in undecided if missed_by_every_seed(o)]:
            sentences.append("Of these, every single seed misses the limit with " + listed(every) + ".")
    if weak := [o for o in undecided if o.power is not None and o.power < LITTLE_POWER]:
        sentences.append(f"With so few seeds these can hardly hold (an arm that loses nothing would in fewer than {100 * LITTLE_POWER:.0f} of 100 campaigns): "
                         + listed(weak) + ".")
    failed = [o for o in ran if o.word == claims.FAILS]
    if worse := [o for o in failed if o.sends]:
        sentences.append("A longer training, a larger model, or a learning rate of its own that brings it to the limit would, for what fails: "
                         + listed(worse) + ".")
    if heavy := [o for o in failed if not o.sends]:
        sentences.append("A model for which they are fewer would, for what fails by its bytes: " + listed(heavy) + ".")
    if held := sum(o.word == claims.HOLDS for o in ran):
        sentences.append(f"A training of full size in which the same arm ends below its limit would, for what holds ({held} of {len(ran)}).")
    if len(ran) < len(outcomes):
        sentences.append("Trials that were not run count neither way yet.")
    return " ".join(sentences)


RULE = ("**The rule.** A trial *holds* where the ratio of bytes (headers, indices and bitmaps counted) is at least the one given, and the low end of the interval "
        "of the difference of final accuracy reaches the limit; it *fails* where the ratio is less, a run of the arm diverged, or the high end misses the limit; else it is "
        "*undecided*. The interval that decides is the one with Holm's correction over all trials of this page with a limit on accuracy, so that the chance "
        "of any wrong word on the page is at most 5 %. Differences are over runs with the same seed. "
        "*Power* is the chance that a trial holds, by its accuracy and at that confidence, for an arm that loses nothing. The claim: all trials that ran hold, *holds*; some do, *holds in part*; "
        "none does and some fail, *fails in part*; all fail, *does not hold here*; none is decided, *undecided*.")


def deviations(names, results):
    """Says which deviations the intervals of these campaigns rest on."""
    said = []
    for name in names:
        pools = [f"{pool.deviation:.2f} points over {len(pool.arms)} arms ({pool.freedom} degrees of freedom, p of equal variances {pool.equal:.2f})"
                 for pool in results.pools[name]]
        own = "by their own " + ", ".join(f"`{arm}`" for arm in results.alone[name]) if results.alone[name] else ""
        said.append(f"{name}: " + "; ".join(filter(None, (*pools, own))))
    return ". ".join(said)


def builds(states):
    """The marks of builds that were not clean."""
    dirty = [name for name, state in states.items() if "-dirty" in state["gradtool"]]
    return f"Trained by builds of trees with changes that were not committed: {', '.join(dirty)}; their commits do not say all that ran." if dirty else ""


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
        low, high = (gap.mean, gap.mean) if gap.error is None else gap.bounds()
        plot.plot([max(low, least - 3), min(high, 5)], [y, y], color="#8aa")
        plot.plot([gap.mean], [y], "o", color="#244", markersize=3)
    plot.axvline(0, color="#999", linewidth=0.8)
    plot.axvline(-limit, color="#c66", linewidth=0.8, linestyle="--")
    plot.set(yticks=range(len(rows)), xlabel="accuracy minus none, points, and its 95 % interval")
    plot.set_yticklabels([label for label, _ in rows], fontfamily="monospace", fontsize=7)
    plot.invert_yaxis()
    figure.tight_layout()
    save(figure, path)


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
            gap = results.difference(results.arm("lenet5-dlcp", name), results.arm("lenet5-dlcp", "none"))
            low, high = gap.bounds()
            same = not gap.diverged and low is not None and low <= 0 <= high
            unbroken = unbroken and (same or (low is not None and low > 0))
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


def counts(outcomes):
    ran = [o.word for o in outcomes if o]
    return f"{ran.count(claims.HOLDS)} hold, {ran.count(claims.FAILS)} fail, {ran.count(claims.UNDECIDED)} undecided"


def page(claim, results, out, paper):
    outcomes = claims.judge(claim, results)
    word = claims.verdict(outcomes)
    ran = sum(o is not None for o in outcomes)
    used = dict.fromkeys(name for o in outcomes if o for name in (o.arm.campaign, o.against.campaign))
    rows = sorted(claims.relevant(claim, results), key=lambda arm: (list(results.campaigns).index(arm.campaign)))
    parts = [f"# {claim.method}: {word}", f"**The claim.** {claim.title}. {claim.text} ({claim.paper}.)",
             f"**The verdict: {word}.** Of {ran} trials that ran: {counts(outcomes)}" + (f"; {len(outcomes) - ran} did not run" if ran < len(outcomes) else "")
             + ".", RULE, table(TRIALS, [trial_row(t, o) for t, o in zip(claim.trials, outcomes)])]
    if used:
        parts.append("**What the intervals rest on.** The deviation of a single run, with the mean of each seed taken out, pooled over the arms of a campaign: over those that end at most "
                     f"{NEAR:g} points below none, and over the others, because runs of arms that lose more scatter more (Student's t; p is Bartlett's). Arms that learned less than half of what none has, "
                     "arms that scatter more than their pool (Cochran's test) and arms in too small a pool keep their own: their intervals have a star in the table below. Against another pool or "
                     f"campaign what a seed does to all arms counts as well. {deviations(used, results)}.")
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
        unclean = builds({name: results.campaigns[name] for name in used})
        parts.append(f"**What was run.** {said}. {unclean}".rstrip() + f"\n\n```sh\n{commands}\n```")
    parts += [f"**What would change our mind.** {mind(outcomes) or 'A run of the trials.'}", f"**What was scaled down.** {claim.smaller}",
              f"Figures: [data](data/campaigns.csv); method: [lib/methods/{claim.method}](../../lib/methods/{claim.method}/README.md)."]
    write(os.path.join(out, claim.method + ".md"), parts, results.quick)
    return outcomes, word


def hashes(state):
    """The beginnings of the hashes of the data's files."""
    kept = [one.rpartition(":") for one in state.get("data_sha256", "").split()]
    return ", ".join(f"{name} {value[:12]}" for name, _, value in kept) or "not recorded"


def ran_row(state, results):
    pool = next(iter(results.pools.get(state["campaign"], ())), None)
    return [state["campaign"], ": ".join(filter(None, (state["status"], state["reason"]))), state["model"], data(state), hashes(state), state["steps"],
            state["seeds"], f"{pool.deviation:.2f} ({pool.freedom})" if pool else "",
            number(float(state["processor_hours"])) if state.get("processor_hours") else "",
            state["gradtool"] + (" **not clean**" if "-dirty" in state["gradtool"] else "")]


RAN = ["campaign", "state", "model", "data", "its SHA-256", "steps", "seeds", "deviation of a run near none, points (degrees of freedom)", "processor hours", "trained by"]


def overview(judged, results, out, before):
    rows = []
    for claim, outcomes, word in judged:
        ran = [o for o in outcomes if o]
        # The figures are those of the first trial, the claim's own setting.
        o = ran[0] if ran else None
        words = [x.word for x in ran]
        rows.append([f"[{claim.method}]({claim.method}.md)", claim.title, f"**{word}**", *(["", "", "", "", "", "", "", "", ""] if not o else [
            *(str(words.count(one)) for one in (claims.HOLDS, claims.FAILS, claims.UNDECIDED)), f"`{o.arm.name}`", o.word, gap_text(o.difference),
            between(*o.bounds), number(results.ratio(o.arm, "payload")), number(results.ratio(o.arm, "wire"))])])
    header = ["method", "claim", "verdict", "trials hold", "fail", "undecided", "first trial's arm", "it", "accuracy minus what it is compared with, points",
              "interval with Holm's correction", "payload ratio", "wire ratio"]
    states = list(results.campaigns.values())
    weak = [o for _, outcomes, _ in judged for o in outcomes if o and o.word == claims.UNDECIDED and o.power is not None and o.power < LITTLE_POWER]
    parts = ["# Do the papers' claims about accuracy hold here?"]
    trials = ", ".join(name for name, state in results.campaigns.items() if "trials.py" in state["command"])
    parts += [f"Each method was trained with its codec in the loop by `gradtool train`{f' ({trials}: by `gradtool.trial`, in PyTorch)' if trials else ''}, "
              "beside uncompressed training from the same seeds. Each page "
              "has the claim, the rule, the figures and what would change our mind. A trial *holds* where the low end of its interval reaches the limit, *fails* "
              "where the high end misses it or the bytes are too many, and is *undecided* else; a claim *holds* (all trials), *holds in part* (some), *fails in part* (none holds, some fail), "
              "*does not hold here* (all fail) or is *undecided* (none is decided). Intervals rest on a deviation pooled over the arms of a campaign, and are corrected "
              "for the number of trials of a page (Holm). They are about seeds: the test images are the same for all. Small models, trained for minutes: a claim that does not hold "
              "here may hold where it was made.",
              table(header, rows[:len(claims.PAPERS)]), "Methods that the papers are compared with, and newer ones:", table(header, rows[len(claims.PAPERS):])]
    if weak:
        parts.append(f"{len(weak)} undecided trials can hardly hold with so few seeds (fewer than {100 * LITTLE_POWER:.0f} of 100 campaigns would say so of an arm that loses "
                     f"nothing): {listed(weak)}.")
    parts += ["[All arms of all campaigns](all.md); [what a replay says about training](replay.md); all trials as CSV: [verdicts.csv](verdicts.csv)."]
    if before:
        parts.append("## What changed since the last verdicts\n\n" + changes(before, judged))
    parts += ["## What ran", table(RAN, [ran_row(state, results) for state in states]),
              " ".join(filter(None, [builds(results.campaigns),
                                     "Hashes are of the files that were read; campaigns.csv has them whole." if any(s.get("data_sha256") for s in states) else
                                     "These campaigns ran before hashes of the data and processor times were recorded; `run.py` records both now."])),
              "```sh\nscripts/verdicts/run.py --out FOLDER --cifar CIFAR10_FOLDER --text TEXT --hours 1    # again and again, until all is complete\n"
              "scripts/verdicts/predictors.py FOLDER --cifar CIFAR10_FOLDER --text TEXT\n"
              "scripts/verdicts/trials.py --out FOLDER_OF_TRIALS --cifar CIFAR10_FOLDER --text TEXT   # in PyTorch\n"
              "scripts/verdicts/pages.py reports/verdicts/data FOLDER --out reports/verdicts --before reports/verdicts/verdicts.csv   # what is complete in FOLDER is new\n```",
              f"All campaigns with five seeds take about {hours():.0f} processor hours; `run.py --list` says what each costs."]
    write(os.path.join(out, "README.md"), parts, results.quick)
    arms = [arm_row(arm, results) for found in results.arms.values() for arm in found.values()]
    write(os.path.join(out, "all.md"), ["# All arms of all campaigns", "Differences are to `none` of the same campaign, or of lenet5 where the "
                                        "campaign has another optimiser for a method's sake, over pairs with the same seed, with the 95 % interval of "
                                        "Student's t by a deviation that is pooled over arms of the campaign; where an arm has one of its own, the interval has a star. No interval is corrected for the number of "
                                        "arms: of a hundred arms that lose nothing, five miss 0. A wire ratio is for four workers.",
                                        f"Deviations of a single run, of arms near none and of others: {deviations(results.arms, results)}.",
                                        table(ARMS, arms) if arms else "Nothing was run."], results.quick)


def hours():
    """Processor hours of everything that run.py has planned."""
    return sum(one.hours for one in campaigns.all_campaigns(types.SimpleNamespace(quick=False, cifar="C", text="T", fashion_mnist="F")))


# ---- Verdicts as a table, and what changed ----

def verdict_rows(judged):
    rows = []
    for claim, outcomes, _ in judged:
        for o in filter(None, outcomes):
            low, high = o.bounds
            rows.append({"method": claim.method, "campaign": o.trial.campaign, "arm": o.arm.name, "against_campaign": o.against.campaign,
                         "against": o.against.name, "limit": "" if o.trial.points is None else f"{0 - o.trial.points:g}",
                         "ratio": "" if o.trial.ratio is None else f"{o.trial.ratio:.4g}", "kind": o.trial.kind if o.trial.ratio is not None else "",
                         "says": o.trial.says, "word": o.word, "difference": signed(o.difference.mean) if o.difference else "",
                         "low": signed(low), "high": signed(high), "level": f"{o.level:.4f}"})
    return rows


# An earlier rule let the mean alone decide; "close" said that the interval reached across the limit.
EARLIER_WORDS = {"passes": claims.HOLDS, "passes, close": claims.HOLDS, "fails, close": claims.FAILS}


def changes(before, judged):
    """A table of the trials whose word is another than in `before`, and of those that came or went."""
    def key(row):
        return tuple(row[column] for column in ("method", "campaign", "arm", "against_campaign", "against", "limit", "ratio", "kind"))
    def said(row):
        interval = f"{row['low']} to {row['high']}" if row["low"] else ""
        return [row["word"], ", ".join(filter(None, (row["difference"], interval)))]
    old, new = {key(row): row for row in before}, {key(row): row for row in verdict_rows(judged)}
    lines, same = [], 0
    for k in dict.fromkeys((*new, *old)):
        row = new.get(k) or old[k]
        words = (old[k]["word"] if k in old else "", new[k]["word"] if k in new else "")
        if EARLIER_WORDS.get(words[0], words[0]) == words[1]:
            same += 1
            continue
        lines.append([row["method"], row["says"], row["campaign"], f"`{row['arm']}`", *(said(old[k]) if k in old else ["no trial", ""]),
                      *(said(new[k]) if k in new else ["no trial any more", ""])])
    text = f"The same word as before: {same} of {len(new)} trials." if lines else f"All {len(new)} trials have the word that they had."
    return text + ("" if not lines else "\n\n" + table(["method", "part of the claim", "campaign", "arm", "before", "difference and interval", "now",
                                                       "difference and interval "], lines))


def copy_data(source, out):
    """The CSVs, without what was measured in seconds."""
    target = os.path.join(out, "data")
    if os.path.realpath(source) == os.path.realpath(target):
        return
    states = read_csv(os.path.join(source, "campaigns.csv"))
    for name in ("campaigns.csv", "arms.csv", "codecs.csv", "replay.csv", "losses.csv", "predictors.csv", "before.csv"):
        keep(os.path.join(source, name), os.path.join(target, name), None)
    for state in states:
        if state["status"] == "complete":
            keep(os.path.join(source, state["campaign"], "train.csv"), os.path.join(target, state["campaign"], "train.csv"), KEPT)


TABLES = ("campaigns.csv", "arms.csv", "replay.csv", "losses.csv", "predictors.csv")  # each row is of a campaign


def combine(folders, target):
    """One folder of the complete campaigns of several: of a campaign in more than one, that of the last."""
    states = [read_csv(os.path.join(folder, "campaigns.csv")) for folder in folders]
    places = {name: place for place, name in enumerate(dict.fromkeys(row["campaign"] for part in states for row in part))}
    done = [{row["campaign"] for row in part if row["status"] == "complete"} for part in states]
    for name in TABLES:
        rows = []
        for number, folder in enumerate(folders):
            later = set().union(*done[number + 1:])
            known = {row["campaign"] for row in rows}
            rows += [row for row in read_csv(os.path.join(folder, name)) if row["campaign"] not in later
                     and (row["campaign"] in done[number] or (name == "campaigns.csv" and row["campaign"] not in known))]
        rows.sort(key=lambda row: places[row["campaign"]])
        columns = list(dict.fromkeys(column for row in rows for column in row))
        write_csv(os.path.join(target, name), [{column: row.get(column, "") for column in columns} for row in rows])
    for folder in folders:
        for name in ("codecs.csv", "before.csv"):
            if os.path.exists(os.path.join(folder, name)):
                shutil.copyfile(os.path.join(folder, name), os.path.join(target, name))
    for number, folder in enumerate(folders):
        for campaign in done[number] - set().union(*done[number + 1:]):
            shutil.copytree(os.path.join(folder, campaign), os.path.join(target, campaign), ignore=lambda _, names: [n for n in names if n != "train.csv"])


def keep(source, target, columns):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    rows = read_csv(source)
    write_csv(target, rows, columns and [column for column in columns if rows and column in rows[0]])


def write_csv(path, rows, columns=None):
    if not rows:
        return
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns or rows[0].keys(), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="what run.py --out wrote, or the folder data of earlier pages")
    parser.add_argument("--out", required=True, help="folder of the pages")
    parser.add_argument("--before", help="verdicts.csv of earlier pages, to list what has changed [before.csv in FOLDER, where there is one]")
    options = parser.parse_args(arguments)
    for path, why in (*((os.path.join(folder, "campaigns.csv"), "run.py --out writes one") for folder in options.folders),
                      (options.before, "pages.py writes verdicts.csv")):
        if path and not os.path.exists(path):
            print(f"pages.py: {path} is not there; {why}", file=sys.stderr)
            return 3
    os.makedirs(options.out, exist_ok=True)
    if len(options.folders) == 1:
        return write_pages(options.folders[0], options)
    with tempfile.TemporaryDirectory() as folder:
        combine(options.folders, folder)
        return write_pages(folder, options)


def write_pages(folder, options):
    kept = os.path.join(folder, "before.csv")
    if options.before and os.path.realpath(options.before) != os.path.realpath(kept):
        shutil.copyfile(options.before, kept)
    before = read_csv(kept)
    results = Results(folder)
    judged = [(claim, *page(claim, results, options.out, claim in claims.PAPERS)) for claim in claims.PAPERS + claims.BASELINES]
    overview(judged, results, options.out, before)
    write_csv(os.path.join(options.out, "verdicts.csv"), verdict_rows(judged))
    replay_page(results, options.out)
    copy_data(folder, options.out)
    for claim, outcomes, word in judged:
        print(f"{claim.method:10} {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

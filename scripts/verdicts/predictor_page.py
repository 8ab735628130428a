"""The section on which error of a replay, and which limit on it, tells what an arm loses in a training that nothing was fitted to."""
import math
import statistics

import scipy.stats

from layout import number, table
from results import is_unbiased, lasting_errors, rank_correlation

MOST_LOST = 1.0  # points of accuracy
IN_TWENTY = 0.05  # share of the accepted arms that may lose more
WORST_LOST = 3.0  # points that none of them may lose
MAX_NMSE = 0.1  # default of --max-nmse, beyond which the advice takes nothing, so that no limit is fitted to what lies there
PREDICTORS = {"nmse": lambda row: float(row["nmse"]), "cumulative_nmse": lambda row: float(row["cumulative_nmse"]),
              "judged today": lambda row: float(row["cumulative_nmse" if row["delays"] == "1" else "nmse"]),
              "update_nmse": lambda row: float(row["update_nmse"]), "cosine_by_layer": lambda row: float(row["cosine_by_layer"])}


def training_of(row):
    """Campaigns of one model are one training where a limit is fitted: a model that is left out is left out whole."""
    return row["model"]


def by_arm(rows, error):
    """{(campaign, arm): (codec, largest error over the phases, points lost)}."""
    arms = {}
    for row in rows:
        key = row["campaign"], row["arm"]
        before = arms.get(key, (None, -math.inf, None))
        arms[key] = row["codec"], max(before[1], error(row)), row["lost"]
    return arms


def fitted_limit(arms):
    """The largest error up to which at most one in twenty arms lost more than a point, and none more than three; 0 where there is none."""
    limit, lost = 0.0, 0
    for count, (_, error, points) in enumerate(sorted(arms, key=lambda arm: (arm[1], -arm[2])), 1):
        if points > WORST_LOST:
            break
        lost += points > MOST_LOST
        if lost <= IN_TWENTY * count:
            limit = error
    return limit


def share(part, whole):
    """A share with its 95 % interval (Clopper and Pearson 1934)."""
    if whole == 0:
        return "0 of 0"
    low = float(scipy.stats.beta.ppf(0.025, part, whole - part + 1)) if part else 0.0
    high = float(scipy.stats.beta.ppf(0.975, part + 1, whole - part)) if part < whole else 1.0
    return f"{part} of {whole} ({100 * low:.0f} to {100 * high:.0f} %)"


def correlations(rows):
    lines, rhos = [], []
    for training, phase in dict.fromkeys((training_of(row), row["phase"]) for row in rows):
        for steps in sorted({row["steps"] for row in rows}, key=int):
            mine = [row for row in rows if (training_of(row), row["phase"], row["steps"]) == (training, phase, steps)]
            cells = []
            for error in PREDICTORS.values():
                rho, low, high = rank_correlation([(row["codec"], error(row), row["lost"]) for row in mine])
                cells.append("" if rho is None else f"{rho:+.2f} ({low:+.2f} to {high:+.2f})")
            lines.append([training, phase, steps, str(len(mine)), *cells])
            if steps == "24":
                rhos.append((training, [float(cell.split()[0]) if cell else math.nan for cell in cells]))
    means = [[statistics.fmean(column) for column in zip(*(values for name, values in rhos if name == training))] for training in dict(rhos)]
    means = [statistics.fmean(column) for column in zip(*means)]
    lines.append(["**mean of trainings**", "", "24", "", *(f"**{mean:+.2f}**" for mean in means)])
    return max(zip(means, PREDICTORS))[1], table(["training", "captured", "steps", "arms", *PREDICTORS], lines)


APART = "nmse, unbiased codecs apart"  # limits of their own for codecs whose errors of several steps cancel
LIMITED = {name: ((lambda row: True,), error) for name, error in PREDICTORS.items()}
KINDS = (lambda row: row["unbiased"], lambda row: not row["unbiased"])
LIMITED[APART] = KINDS, PREDICTORS["nmse"]
AS_ADVICE = "as the advice counts it"
LIMITED[AS_ADVICE] = KINDS, lambda row: row["lasting"]


def left_out(rows, steps, each=True):
    """For each predictor: limits fitted on all trainings but one, and what becomes of the arms of that one. each: a row for every training, too."""
    lines, sums = [], {}
    trainings = list(dict.fromkeys(map(training_of, rows)))
    for name, (kinds, error) in LIMITED.items():
        accepted = false = worst = fine = refused = 0
        for training in trainings:
            limits, taken, harmless, missed = [], [], [], []
            for belongs in kinds:
                mine = by_arm([row for row in rows if training_of(row) == training and row["steps"] == steps and belongs(row)], error).values()
                others = by_arm([row for row in rows if training_of(row) != training and row["steps"] == "24" and belongs(row)], error).values()
                limit = fitted_limit([arm for arm in others if name != AS_ADVICE or arm[1] <= MAX_NMSE])
                limits.append(number(limit))
                taken += [arm for arm in mine if arm[1] <= limit]
                harmless += [arm for arm in mine if arm[2] <= MOST_LOST]
                missed += [arm for arm in mine if arm[2] <= MOST_LOST and arm[1] > limit]
            wrong = [arm for arm in taken if arm[2] > MOST_LOST]
            accepted, false, fine, refused = accepted + len(taken), false + len(wrong), fine + len(harmless), refused + len(missed)
            worst = max([worst, *(arm[2] for arm in taken)])
            if each:
                lines.append([name, training, " and ".join(limits), share(len(wrong), len(taken)), share(len(missed), len(harmless)),
                              f"{max([arm[2] for arm in taken], default=0.0):+.2f}"])
        lines.append([f"**{name}**", "**all**", "", f"**{share(false, accepted)}**", f"**{share(refused, fine)}**", f"**{worst:+.2f}**"])
        sums[name] = false, accepted, refused, fine, worst
    return table(["error", "left out", "limit by the others", "accepted that lost more than a point", "refused that did not", "worst accepted, points"], lines), sums


def drift(rows):
    """By how much a predictor changes where 10 steps of a window are captured in the place of 24: median factor over arms, either way."""
    cells = []
    for error in PREDICTORS.values():
        both = {}
        for row in rows:
            both.setdefault((row["campaign"], row["phase"], row["arm"]), {})[row["steps"]] = error(row)
        factors = [max(one["10"], one["24"]) / min(one["10"], one["24"]) for one in both.values() if len(one) == 2 and min(one.values()) > 1e-9]
        worst = sorted(factors)[int(0.95 * (len(factors) - 1))]
        cells.append(f"{statistics.median(factors):.2f} ({worst:.2f})")
    return table(["", *PREDICTORS], [["10 against 24 steps", *cells]])


def section(rows, unbiased):
    """Markdown of the section, given predictors.csv with the points that arms lost, and the names of unbiased codecs."""
    rows = [row for row in rows if all(row[name] for name in ("nmse", "cumulative_nmse", "update_nmse", "cosine_by_layer"))]
    rows = [{**row, "unbiased": is_unbiased(row, unbiased), "lasting": lasting}
            for row, lasting in zip(rows, lasting_errors(rows, unbiased, "phase", lambda row: int(row["steps"])))]
    if not rows:
        return []
    best, ranks = correlations(rows)
    begins = {}
    for row in rows:
        begins.setdefault(row["campaign"], {})[row["first_step"]] = None
    captured = "; ".join(f"{campaign} from iterations {', '.join(firsts)}" for campaign, firsts in begins.items())
    text, sums = left_out(rows, "24")
    short, short_sums = left_out(rows, "10", each=False)
    good = [name for name in sums if all(false <= IN_TWENTY * accepted and worst <= WORST_LOST and 4 * refused <= fine
                                         for false, accepted, refused, fine, worst in (sums[name], short_sums[name]))]
    return ["## Errors that know the optimizer",
            "`bench --update-error` adds `update_nmse`, the error of the updates that the training's own optimizer makes, and `cosine_by_layer`, of the sums of 8 steps "
            "([docs/measuring.md](../../docs/measuring.md)). Neither divides by a sum that grows with the capture. Do they order the points lost better? Spearman's rank "
            "correlation with its 95 % interval, as above; campaigns of one model are one training "
            f"(captured: {captured}):", ranks,
            f"In the mean over trainings `{best}` orders the points lost best.",
            "How much an error depends on the length of the capture: the factor between 10 and 24 steps from the same first one, median over arms (and the 95th percentile):",
            drift(rows),
            f"**A limit for a training that it was not fitted to.** For each error the largest limit up to which at most one in twenty arms of the other trainings lost more than "
            f"{MOST_LOST:g} point and none more than {WORST_LOST:g}, the error being the largest over the captured phases, of 24 steps each; then the arms of the training that was left out. Shares have their 95 % interval "
            "(Clopper and Pearson), as if arms were independent, which those of one codec are not. The advice counts an error 1 + 18 c times where those of two steps correlate by "
            f"c > 0, and unbiased codecs apart, and takes nothing above {MAX_NMSE:g} (docs/network-model.md).", text,
            "The same limits on captures of 10 steps:", short,
            "A default ought to accept at most one arm in twenty that loses more than a point and none that loses more than three, and to refuse at most one in four that lose "
            f"none, of 10 steps as of 24. {'That is what limits on ' + ' and '.join(good) + ' do here' if good else 'None of these errors does that here'}. "
            f"{len(set(map(training_of, rows)))} models are too few to promise anything to another one. The advice goes by the error of a step, which counts more where the errors of "
            "two steps correlate, up to such limits for all arms of all trainings, one for unbiased codecs and one for the others, and names a trial for what errs more."]

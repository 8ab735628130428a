"""Reads the CSVs of a run: accuracies of arms, differences with their intervals, ratios of bytes, and ranks."""
import csv
import dataclasses
import math
import os
import statistics

import numpy as np
import scipy.stats


def read_csv(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@dataclasses.dataclass
class Arm:
    """A codec in a campaign. accuracy: {seed: share of right answers after the last step}, of the seeds that finished."""
    campaign: str
    name: str
    codec: str
    accuracy: dict
    diverged: list
    payload: float  # bytes that the encoder of a rank wrote, of a run
    payload_at_end: float  # the same in the last epoch alone
    wire: float  # bytes that the rank that sent most sent
    wire_at_end: float = math.nan
    rate: float = 1.0  # factor of the learning rate: another seed has found it to do best


@dataclasses.dataclass
class Difference:
    """In points of accuracy, over pairs with the same seed. Its interval is Student's t, whose degrees of freedom are those of the
    deviation that the standard error rests on."""
    mean: float
    error: float | None  # standard error of the mean; None: there is nothing to tell it from
    freedom: float
    pairs: int
    diverged: bool = False
    pooled: bool = False  # whether the deviation is that of all arms of the campaign

    def bounds(self, level=0.95):
        """The interval of this confidence, (None, None) where there is none."""
        if self.error is None:
            return None, None
        half = float(scipy.stats.t.ppf((1 + level) / 2, self.freedom)) * self.error if self.error else 0.0
        return self.mean - half, self.mean + half

    def p_value(self, limit):
        """Two-sided, of the hypothesis that the difference is `limit`: at most 1 - level where the interval of that level excludes it."""
        if self.error is None:
            return 1.0
        return 2 * float(scipy.stats.t.sf(abs(self.mean - limit) / self.error, self.freedom)) if self.error else 0.0

    def power(self, limit, level):
        """The chance that the interval of this level lies above `limit` where the true difference is 0."""
        if not self.error:
            return None
        needed, gap = float(scipy.stats.t.ppf((1 + level) / 2, self.freedom)), -limit / self.error
        # The noncentral t as a mean over quantiles of the estimated deviation: scipy.stats.nct is not a number for some of these.
        deviations = np.sqrt(scipy.stats.chi2.ppf((np.arange(2000) + 0.5) / 2000, self.freedom) / self.freedom)
        return float(scipy.stats.norm.cdf(gap - needed * deviations).mean())


@dataclasses.dataclass
class Pool:
    """The deviation of a single run, pooled over arms of a campaign: a two-way analysis of variance (arm, seed) without replication, as a
    seed decides weights and data for all arms alike."""
    arms: tuple  # names
    seeds: int
    residual: float  # mean square of what neither arm nor seed explains
    freedom: int
    between: float  # mean square of seeds
    equal: float  # p of Bartlett's test that the arms have one variance
    LEAST = 4  # arms, below which there is nothing to compare an arm's variance with

    @property
    def deviation(self):
        return math.sqrt(self.residual)


NEAR = 2.0  # points below none, up to which arms are pooled with it: runs of arms that lose more scatter more


def pools_of(arms, baseline):
    """The pools of a campaign, of arms near the accuracy `baseline` (and above) and of the others, and the arms in neither. Out are arms that
    did not finish with every seed; that have learned less than half of what none has, whose runs may all end at the same guess; and whose
    variance is larger than that of their pool by Cochran's test (1941) at 5 %, one by one. They keep a deviation of their own."""
    seeds = max((len(arm.accuracy) for arm in arms), default=0)
    near, far, alone = [], [], []
    for arm in arms:
        mean = statistics.fmean(arm.accuracy.values()) if arm.accuracy else 0.0
        whole = len(arm.accuracy) == seeds and not arm.diverged and mean >= baseline / 2
        (alone if not whole else near if 100 * (mean - baseline) >= -NEAR else far).append(arm)
    pools = []
    for chosen in (near, far):
        while seeds > 1 and len(chosen) > Pool.LEAST and (k := outlying(chosen)) is not None:
            alone.append(chosen.pop(k))
        if seeds > 1 and len(chosen) >= Pool.LEAST:
            pools.append(pool_of(chosen))
        else:
            alone += chosen
    return pools, [arm.name for arm in alone]


def two_way(arms):
    """Accuracies in points, a row for each arm, and what is left of them without the means of arms and seeds."""
    values = 100 * np.array([[arm.accuracy[seed] for seed in sorted(arm.accuracy)] for arm in arms])
    return values, values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()


def outlying(arms):
    """The arm with the largest variance, if that is too large against those of the others together; else None."""
    _, rests = two_way(arms)
    count, seeds = rests.shape
    squares, others = (rests ** 2).sum(1), (count - 2) * (seeds - 1)
    k = int(squares.argmax())
    ratio = squares[k] * count / (count - 1) / (seeds - 1) / max((squares.sum() - squares[k]) / others, 1e-12)
    return k if float(scipy.stats.f.sf(ratio, seeds - 1, others)) * count < 0.05 else None


def pool_of(arms):
    values, rests = two_way(arms)
    count, seeds = values.shape
    freedom = (count - 1) * (seeds - 1)
    between = count * ((values.mean(0) - values.mean()) ** 2).sum() / (seeds - 1)
    scattered = (rests ** 2).sum(1).min() > 0
    equal = float(scipy.stats.bartlett(*(values - values.mean(0))).pvalue) if scattered else 0.0
    return Pool(tuple(arm.name for arm in arms), seeds, float((rests ** 2).sum() / freedom), freedom, float(between), equal)


class Results:
    def __init__(self, folder):
        self.folder = folder
        self.campaigns = {row["campaign"]: row for row in read_csv(os.path.join(folder, "campaigns.csv"))}
        self.arms = {}  # {campaign: {arm: Arm}}
        names = read_csv(os.path.join(folder, "arms.csv"))
        for campaign, state in self.campaigns.items():
            if state["status"] == "complete":
                rows = read_csv(os.path.join(folder, campaign, "train.csv"))
                self.arms[campaign] = {row["arm"]: arm_of(row, rows) for row in names if row["campaign"] == campaign}
        self.pools, self.alone = {}, {}  # {campaign: [Pool]}, and the names of arms with a deviation of their own
        for campaign, arms in self.arms.items():
            none = self.arm(self.campaigns[campaign]["compared_with"], "none") or arms["none"]
            baseline = statistics.fmean(none.accuracy.values()) if none.accuracy else 0.0
            self.pools[campaign], self.alone[campaign] = pools_of(list(arms.values()), baseline)
        self.quick = any(state["quick"] == "1" for state in self.campaigns.values())
        self.replay = read_csv(os.path.join(folder, "replay.csv"))
        self.predictors = read_csv(os.path.join(folder, "predictors.csv"))
        self.losses = read_csv(os.path.join(folder, "losses.csv"))
        self.unbiased = {row["name"] for row in read_csv(os.path.join(folder, "codecs.csv")) if row["unbiased"] == "true"}

    def arm(self, campaign, name):
        """The arm of this name, or the only one that has all these parameters; None where the campaign did not run."""
        arms = self.arms.get(campaign)
        if arms is None:
            return None
        if name in arms:
            return arms[name]
        codec, _, params = name.partition(":")
        wanted = set(params.split(",")) - {""}
        fits = [arm for arm in arms.values() if arm.codec == codec and wanted <= set(arm.name.partition(":")[2].split(","))]
        if len(fits) != 1:
            raise LookupError(f"{len(fits)} arms of {campaign} are {name}, not one")
        return fits[0]

    def against_none(self, arm):
        """The difference to uncompressed training; None where that did not run, and for what would be compared with itself."""
        none = self.arm(self.campaigns[arm.campaign]["compared_with"], "none")
        return None if none is None or none is arm else self.difference(arm, none)

    def difference(self, arm, against):
        """In points. A run that diverged has no accuracy: the difference is then of the others, and says so."""
        seeds = [seed for seed in arm.accuracy if seed in against.accuracy]
        gaps = [100 * (arm.accuracy[seed] - against.accuracy[seed]) for seed in seeds]
        diverged = bool(arm.diverged or against.diverged)
        if not gaps:
            return Difference(math.nan, None, 0, 0, True)
        pool, other = self.pool(arm), self.pool(against)
        if arm.campaign == against.campaign and pool and pool is other:
            parts = [(2 * pool.residual / pool.seeds, pool.freedom)]
        elif arm.campaign != against.campaign or (pool and other):
            parts = self.unpaired(arm) + self.unpaired(against)
        else:
            parts = [(statistics.variance(gaps) / len(gaps), len(gaps) - 1)] if len(gaps) > 1 else [(None, 0)]
        return Difference(statistics.fmean(gaps), *together(parts), len(gaps), diverged, bool(pool and other))

    def pool(self, arm):
        """The pool that the arm is in; None where its deviation is its own."""
        return next((pool for pool in self.pools[arm.campaign] if arm.name in pool.arms), None)

    def unpaired(self, arm):
        """The variance of an arm's mean among seeds, as parts with their degrees of freedom: what seeds share counts as well, because it
        need not cancel against another pool, nor does it against another campaign, where the same seed decides something else."""
        pool, values = self.pool(arm), [100 * value for value in arm.accuracy.values()]
        if pool:
            count = len(pool.arms)
            return [(pool.between / count / pool.seeds, pool.seeds - 1), ((1 - 1 / count) * pool.residual / pool.seeds, pool.freedom)]
        return [(statistics.variance(values) / len(values), len(values) - 1)] if len(values) > 1 else [(None, 0)]

    def ratio(self, arm, kind):
        """Uncompressed bytes of none over those of the arm. kind: payload or wire, of all steps or at the end."""
        none = self.arm(arm.campaign, "none")
        value = {"payload": lambda a: a.payload, "payload at the end": lambda a: a.payload_at_end, "wire": lambda a: a.wire,
                 "wire at the end": lambda a: a.wire_at_end}[kind]
        return value(none) / value(arm) if value(arm) else math.inf


def arm_of(named, rows):
    mine = [row for row in rows if (row["codec"], row["params"]) == (named["codec"], named["params"]) and row.get("judged") != "false"]
    by_seed = {}
    for row in mine:
        by_seed.setdefault(row["seed"], []).append(row)
    if not by_seed:
        raise LookupError(f"train.csv of {named['campaign']} has no {named['arm']}")
    ends = {seed: sorted(epochs, key=lambda row: int(row["step"])) for seed, epochs in by_seed.items()}
    finished = {seed: epochs for seed, epochs in ends.items() if epochs[-1]["status"] == "finished"}
    counted = finished or ends

    def per_step(column, last_epoch=False):
        values = []
        for epochs in counted.values():
            before = epochs[-2] if last_epoch and len(epochs) > 1 else {column: 0, "step": 0}
            values.append((float(epochs[-1][column]) - float(before[column])) / (int(epochs[-1]["step"]) - int(before["step"])))
        return statistics.fmean(values)

    return Arm(named["campaign"], named["arm"], named["codec"], {seed: float(e[-1]["test_accuracy"]) for seed, e in finished.items()},
               [seed for seed in ends if seed not in finished], per_step("payload_bytes"), per_step("payload_bytes", last_epoch=True),
               per_step("wire_bytes"), per_step("wire_bytes", last_epoch=True), float(mine[0].get("lr_factor") or 1.0))


def interval(values):
    """Mean, and the bounds of its 95 % interval; no bounds of one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def together(parts):
    """The standard error of a sum of independent parts, (variance, degrees of freedom) each, and its degrees of freedom as Satterthwaite
    (1946) approximates them."""
    if any(variance is None for variance, _ in parts):
        return None, 0
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return 0.0, sum(freedom for _, freedom in parts)
    return math.sqrt(total), total ** 2 / sum(variance ** 2 / freedom for variance, freedom in parts)


def corrected(p_values, alpha=0.05):
    """Holm's step-down procedure (1979): for each hypothesis whether it is rejected, and the confidence of an interval that excludes
    the limit exactly where it is."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, stopped = [None] * len(p_values), None
    for rank, i in enumerate(order):
        share = alpha / (len(p_values) - (rank if stopped is None else stopped))
        if stopped is None and p_values[i] > share:
            stopped = rank
        found[i] = (stopped is None, 1 - share)
    return found


def rank_correlation(points, draws=2000, seed=1):
    """Spearman's rho of points (codec, x, y), and its 95 % interval by a bootstrap that draws codecs with all of their arms, because
    arms of one codec are not independent. None where ranks are all equal, or there are too few codecs to draw; not a number where a
    point is none."""
    codecs = list(dict.fromkeys(codec for codec, _, _ in points))
    if len(codecs) < 4:
        return None, None, None
    if any(math.isnan(value) for point in points for value in point[1:]):
        return math.nan, math.nan, math.nan
    columns = [np.unique([point[i] for point in points], return_inverse=True)[1] for i in (1, 2)]

    def rhos(times):
        """times: [draw, point], how often each point was drawn. Draws in which all ranks are equal have no rho."""
        centred = []
        for place in columns:
            counts = times @ np.eye(place.max() + 1)[place]
            ranks = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, place]  # equal values share the mean of their ranks
            centred.append(ranks - (times * ranks).sum(axis=1, keepdims=True) / times.sum(axis=1, keepdims=True))
        x, y = centred
        xx, xy, yy = ((times * product).sum(axis=1) for product in (x * x, x * y, y * y))
        vary = (xx > 0) & (yy > 0)
        return xy[vary] / np.sqrt(xx[vary] * yy[vary])

    generator = np.random.default_rng(seed)
    chosen = [np.bincount(generator.integers(len(codecs), size=len(codecs)), minlength=len(codecs)) for _ in range(draws)]
    drawn = rhos(np.array(chosen)[:, [codecs.index(codec) for codec, _, _ in points]].astype(float))
    low, high = np.percentile(drawn, [2.5, 97.5]) if len(drawn) else (None, None)
    whole = rhos(np.ones((1, len(points))))
    return float(whole[0]) if len(whole) else None, low, high


def safe_error(points, most):
    """points: (error, points of accuracy lost). The largest error up to which nothing lost more than `most`; None: there is none."""
    safe = None
    for error, lost in sorted(points, key=lambda point: (point[0], -point[1])):
        if lost > most:
            break
        safe = error
    return safe


PAIRS = 18  # 2 (0.9 + 0.9^2 + ...), the weights of all pairs of steps in a momentum of 0.9, for one of each step with itself
LIKELY_AT_MOST = 0.25  # a correlation that is not known, as in lib/advice/confidence.cpp


def is_unbiased(row, unbiased):
    """Whether the row's errors of several steps are independent: it has one of these codecs, and no memory."""
    return row["delays"] == "0" and row["arm"].partition(":")[0] in unbiased


def lasting_errors(rows, unbiased, moment, steps, pairs=PAIRS):
    """The errors of rows as the advice counts them: that of a step, times 1 + 18 c where the errors of two steps correlate by c > 0 (lib/advice/confidence.hpp).

    The correlation is what the error of the sum over the steps is more than it would be of independent ones, which unbiased codecs show on the same
    capture. moment: the column that tells captures of a campaign apart; steps(row): how many there are. pairs=0: that of a step alone.
    """
    def growth(row):
        return float(row["cumulative_nmse"]) / float(row["nmse"])

    independent = {}
    for row in rows:
        if is_unbiased(row, unbiased) and row["cumulative_nmse"] and float(row["nmse"]):
            key = row["campaign"], row[moment], steps(row)
            independent[key] = min(growth(row), independent.get(key, math.inf))

    def lasting(row):
        nmse = float(row["nmse"])
        if row["delays"] == "1" or is_unbiased(row, unbiased) or not nmse or not row["cumulative_nmse"]:
            return nmse
        campaign, *capture = row["campaign"], row[moment], steps(row)
        # A campaign without an unbiased codec shares the capture of the one that it is named after (lenet5-recent, lenet5).
        of_independent = independent.get((campaign, *capture)) or independent.get((campaign.rpartition("-")[0], *capture))
        correlation = (growth(row) / of_independent - 1) / (steps(row) - 1) if of_independent else LIKELY_AT_MOST
        return nmse * (1 + pairs * max(0, correlation))

    return list(map(lasting, rows))

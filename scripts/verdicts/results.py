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


@dataclasses.dataclass
class Difference:
    """In points of accuracy, over pairs with the same seed; low and high bound the mean with 95 % confidence (Student's t)."""
    mean: float
    low: float | None
    high: float | None
    pairs: int
    diverged: bool = False


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
        self.quick = any(state["quick"] == "1" for state in self.campaigns.values())
        self.replay = read_csv(os.path.join(folder, "replay.csv"))
        self.losses = read_csv(os.path.join(folder, "losses.csv"))

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
        return None if none is None or none is arm else difference(arm, none)

    def ratio(self, arm, kind):
        """Uncompressed bytes of none over those of the arm. kind: payload, payload at the end, or wire."""
        none = self.arm(arm.campaign, "none")
        value = {"payload": lambda a: a.payload, "payload at the end": lambda a: a.payload_at_end, "wire": lambda a: a.wire}[kind]
        return value(none) / value(arm) if value(arm) else math.inf


def arm_of(named, rows):
    mine = [row for row in rows if (row["codec"], row["params"]) == (named["codec"], named["params"])]
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
               per_step("wire_bytes"))


def interval(values):
    """Mean, and the bounds of its 95 % interval; no bounds of one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def difference(arm, against):
    """Returns the difference of two arms, in points. A run that diverged has no accuracy: the difference is then of the others, and says
    so."""
    pairs = [100 * (arm.accuracy[seed] - against.accuracy[seed]) for seed in arm.accuracy if seed in against.accuracy]
    if not pairs:
        return Difference(math.nan, None, None, 0, True)
    return Difference(*interval(pairs), len(pairs), bool(arm.diverged or against.diverged))


def rank_correlation(points, draws=2000, seed=1):
    """Spearman's rho of points (codec, x, y), and its 95 % interval by a bootstrap that draws codecs with all of their arms, because
    arms of one codec are not independent. None where ranks are all equal, or there are too few codecs to draw."""
    def rho(chosen):
        x, y = (scipy.stats.rankdata(column) for column in zip(*((x, y) for _, x, y in chosen)))
        return None if np.ptp(x) == 0 or np.ptp(y) == 0 else float(np.corrcoef(x, y)[0, 1])
    by_codec = {}
    for point in points:
        by_codec.setdefault(point[0], []).append(point)
    if len(by_codec) < 4:
        return None, None, None
    groups, generator = list(by_codec.values()), np.random.default_rng(seed)
    drawn = [rho([point for k in generator.integers(len(groups), size=len(groups)) for point in groups[k]]) for _ in range(draws)]
    drawn = [value for value in drawn if value is not None]
    low, high = np.percentile(drawn, [2.5, 97.5]) if drawn else (None, None)
    return rho(points), low, high


def safe_error(points, most):
    """points: (error, points of accuracy lost). The largest error up to which nothing lost more than `most`; None: there is none."""
    safe = None
    for error, lost in sorted(points, key=lambda point: (point[0], -point[1])):
        if lost > most:
            break
        safe = error
    return safe

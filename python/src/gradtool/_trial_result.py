"""The result of a trial: statistics of its runs, a table, and the record trial.json. Needs NumPy alone."""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import Any, Optional, Union

import numpy as np

from ._places import as_text, beside

FORMAT, SCHEMA = "gradtool.trial", 1

#: A run is far behind that is where none was after this share of its steps, if the gap is more than _COUNTS of what none's loss
#: falls by. On a curve that is flat, any gap takes none far back.
_FAR_BEHIND, _COUNTS = 1 / 3, 0.05
#: Shares of the steps after which runs are looked at, and the share of the steps made within which none was where a hopeless run
#: is. The first look is lenient, because a codec with a memory starts late.
#: Codecs shake a training alike whose deviations from none, step by step, differ by at most this factor.
_ALIKE = 2.0
_MANY_SEEDS = 50  # more than anybody runs
_HOPELESS = ((0.25, 0.1), (0.5, _FAR_BEHIND), (0.75, _FAR_BEHIND))


def _window(steps: int) -> int:
    """Steps over which losses are averaged: enough to see through the noise of a batch."""
    return min(steps, max(10, steps // 20))


def _falling(losses: Any) -> np.ndarray:
    """The non-increasing sequence nearest to the losses by least squares (isotonic regression, by pooling adjacent violators)."""
    blocks: list = []      # [sum, steps]
    for loss in losses:
        blocks.append([float(loss), 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] <= blocks[-1][0] * blocks[-2][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    return np.repeat([total / count for total, count in blocks], [count for _, count in blocks])


def _end_of(losses: Any) -> float:
    """Returns the mean of the last window. The last value of _falling() is that of the luckiest last batches."""
    return float(np.mean(losses[-_window(len(losses)):]))


def _steps_to(reference: Any, level: float) -> int:
    """Steps after which the reference had fallen to a loss that it ends below."""
    return int(np.argmax(_falling(reference) <= level)) + 1


def _is_far_behind(losses: Any, reference: Any, share: float, window: int) -> bool:
    """Whether a run is where the reference was after that share of its steps, by more than a gap that nobody would mind.

    `reference` may go on where the run has not been yet: its whole fall tells what a gap is worth.
    """
    made = len(losses)
    gaps = np.subtract(losses, reference[:made])
    last, before = gaps[-window:], gaps[-2 * window:-window]
    curve, here = _falling(reference), _falling(reference[:made])
    # Nine of ten steps are worse: a mean would see little where the losses of a run that diverges differ by orders of magnitude.
    return bool((last > 0).mean() >= 0.9 and last.mean() > _COUNTS * (curve[0] - curve[-1]) and last.mean() > 0.8 * before.mean()
                and _steps_to(reference[:made], here[-1] + last.mean()) < share * made)


def _has_learned(losses: Any) -> bool:
    """Whether the losses fell from the first tenth of the steps to the last by more than their noise leaves to chance: by more than
    three standard errors, which are taken from differences between steps that follow each other, as a trend is no noise."""
    losses = np.asarray(losses, dtype=float)
    count = max(2, len(losses) // 10)
    if len(losses) < 2 * count or not np.isfinite(losses).all():
        return len(losses) < 2 * count
    noise = math.sqrt(np.mean(np.diff(losses) ** 2) / 2)
    return bool(losses[:count].mean() - losses[-count:].mean() > 3 * noise * math.sqrt(2 / count))


def is_hopeless(losses: list, reference: list, steps: int) -> bool:
    """Whether a run is so far behind the one without a codec, step by step on the same data, that it is not worth its time."""
    made, window = len(losses), _window(steps)
    share = next((limit for looked, limit in _HOPELESS if made == int(looked * steps)), None)
    return share is not None and made >= 2 * window and _is_far_behind(losses, reference, share, window)


def has_no_effect(run: dict, other: dict) -> bool:
    """Whether two runs of one seed have the same losses from the first update on."""
    return run["losses"][1:6] == other["losses"][1:6]


def _student(degrees: int) -> float:
    """The quantile of Student's t that leaves 2.5 % on either side."""
    # With t = sqrt(degrees) tan(a) the density becomes cos(a)^(degrees - 1).
    angles = np.linspace(0.0, math.pi / 2, 200001)
    density = np.cos(angles) ** (degrees - 1)
    share = np.cumsum((density[1:] + density[:-1]) / 2)
    return math.sqrt(degrees) * math.tan(float(np.interp(0.95, share / share[-1], angles[1:])))


def _noise(pairs: list) -> float:
    """How much a codec shakes a training: the deviation of its losses from none's, step by step, over the second half of the steps."""
    half = [np.subtract(run["losses"], none["losses"])[len(none["losses"]) // 2:] for run, none in pairs]
    return math.sqrt(np.mean([gap.var() for gap in half]))


def _spread(codec: str, worse: dict, noise: dict) -> tuple:
    """Standard deviation of a codec's differences over seeds, and its degrees of freedom.

    It is pooled over the codecs that shake the training about as much, by step. Two or three seeds alone tell little, and those of
    codecs that are nearly exact, or far off, nothing about this one.
    """
    alike = [worse[other] for other in noise if codec in noise and noise[codec] / _ALIKE <= noise[other] <= noise[codec] * _ALIKE]
    degrees = sum(len(differences) - 1 for differences in alike)
    return math.sqrt(sum(((d - d.mean()) ** 2).sum() for d in alike) / degrees) if degrees else None, degrees


def _what_would_tell(arm: dict, tolerance: float) -> str:
    """The number of seeds with which the interval would no longer hold the tolerance, if the mean stayed: it narrows with their root."""
    gap = abs(arm["worse_by"] - tolerance)
    seeds = arm["seeds"] * ((arm["high"] - arm["low"]) / 2 / gap) ** 2 if gap > 0.0 else math.inf
    return f"some {math.ceil(seeds)} seeds in all, or more steps, would tell" if seeds <= _MANY_SEEDS else "more steps would tell, or another tolerance"


class TrialResult:
    """Runs and arms of a trial. `print` shows the table; `frame()` is it for pandas; `result["topk:ratio=0.01"]` is one arm.

    runs:  a dictionary for each run: codec, way (to reduce: sum, gather, hop, alltoall, own or none), seed, lr_factor,
           status (finished, diverged, stopped, failed), steps, losses of each step before its update, metrics that train() returned, bytes_sent_per_step of the worker that sends most.
    arms:  a dictionary for each codec, with all of its parameters (codec) and as it was given (name), with its way:
           verdict: baseline, learns (the interval's high end is within the tolerance), loses (its low end is beyond it, or the
               run diverged or was stopped), undecided, or failed
           value: what is judged, mean over seeds; with fewer seeds than none has, none's mean and the difference over the seeds of both
           worse_by, low, high: how much worse than none, and its 95 % interval
           same_as_none: share of the steps after which none had the same training loss; divides a speed-up in time for an iteration
           sent: bytes sent by those of none;  lr_factor: what was best of lr_factors;  reason: of the verdict
    """

    def __init__(self, settings: dict, runs: list, name: Optional[str] = None) -> None:
        self.settings, self.runs, self.name = settings, runs, name
        self._arms: Optional[list] = None
        #: Codecs as they were given, by what they are with all of their parameters.
        self.names = dict(zip(settings["codecs"], settings["names"]))

    def __getitem__(self, codec: str) -> dict:
        from . import _core
        parsed = _core.parse_codec(codec)
        spec = f"{parsed['name']}:{parsed['params']}" if parsed["params"] else parsed["name"]
        for arm in self.arms:
            if arm["codec"] == spec:
                return arm
        raise KeyError(f"{codec} took no part; these did: {', '.join(self.names.values())}")

    def add(self, record: dict) -> None:
        """Takes a run that has ended."""
        self.runs.append(record)
        self._arms = None

    def run(self, codec: str, seed: int, factor: float) -> Optional[dict]:
        """That run, where it has been made."""
        return next((run for run in self.runs if (run["codec"], run["seed"], run["lr_factor"]) == (codec, seed, factor)), None)

    def reference(self, seed: int) -> Optional[dict]:
        """The run without a codec that others of the seed are compared with while they run."""
        factors = {self.settings["lr_factors"][0], self.best_factor("none")}
        return next((run for run in self.runs if run["codec"] == "none" and run["seed"] == seed and run["lr_factor"] in factors), None)

    def best_factor(self, codec: str) -> Optional[float]:
        """The factor of the learning rate with which the codec did best in the first seed, or the only one; None where there are several
        and it finished with none."""
        if len(self.settings["lr_factors"]) == 1:
            return self.settings["lr_factors"][0]
        tried = [run for run in self.runs if run["codec"] == codec and run["seed"] == self.settings["seeds"][0] and run["status"] == "finished"]
        best = min(tried, key=self._cost, default=None)
        return None if best is None else best["lr_factor"]

    def factors_for(self, codec: str, seed: int) -> list:
        """Returns the factors that are still to be run: all of them in the first seed, then the best one; none for a codec that is
        hopeless."""
        if seed == self.settings["seeds"][0]:
            return self.settings["lr_factors"]
        before = self.settings["seeds"][:self.settings["seeds"].index(seed)]
        if codec != "none" and any(run["codec"] == codec and run["seed"] in before and run["status"] != "finished" and run["lr_factor"] == self.best_factor(codec)
               for run in self.runs):
            return []
        best = self.best_factor(codec)
        return [] if best is None else [best]

    def lost_seeds(self) -> list:
        """The seeds with which the training diverges by itself, so that nothing can be compared there."""
        return [run["seed"] for run in self.runs if run["codec"] == "none" and run["status"] == "diverged" and run["lr_factor"] == self.best_factor("none")]

    def judges_returned(self) -> bool:
        """Whether what train() returned is judged; else it is the training loss. The first run without a codec decides."""
        first = next((run for run in self.runs if run["codec"] == "none"), None)
        return first is not None and self.settings["judge"] in first["metrics"]

    def _value(self, run: dict) -> float:
        """Returns the value by which a run that has finished is judged."""
        if self.judges_returned():
            value = run["metrics"][self.settings["judge"]]
            return math.nan if value is None else value
        return float(np.mean(run["losses"][-max(10, len(run["losses"]) // 10):]))

    def _cost(self, run: dict) -> float:
        value = self._value(run)
        cost = -value if self.settings["higher_is_better"] else value
        return cost if math.isfinite(cost) else math.inf

    @property
    def tolerance(self) -> float:
        """By how much an arm may be worse than none."""
        if self.settings["tolerance"] is not None:
            return self.settings["tolerance"]
        falls = [_falling(run["losses"])[0] - _end_of(run["losses"]) for run in self._finished_nones()]
        return 0.02 * float(np.mean([fall for fall in falls if fall > 0])) if any(fall > 0 for fall in falls) else 0.0

    @property
    def warning(self) -> Optional[str]:
        """Returns what makes verdicts doubtful, that none itself has diverged or learned nothing, as a sentence without its end; else None."""
        runs, lost = self._finished_nones(), self.lost_seeds()
        still = [run for run in runs if not _has_learned(run["losses"])]
        said = []
        if lost:
            rest = "verdicts rest on the others" if any(run["seed"] in self._judged_seeds() for run in runs) else "no seed is left to judge by"
            said.append(f"none itself diverged with seed {', '.join(map(str, lost))}: the training is unstable by itself, and {rest}. A lower learning rate would "
                        "tell more")
        if still:
            seeds = "" if len(still) == len(runs) and not lost else f" with seed {', '.join(str(run['seed']) for run in still)}"
            first, last = still[0]["losses"][0], still[0]["losses"][-1]
            said.append(f"none itself has learned nothing{seeds}: its loss went from {first:.4g} to {last:.4g} in {still[0]['steps']} steps, within its noise. "
                        "Verdicts say little then: more steps or other learning rates would tell")
        return ". ".join(text[0].upper() + text[1:] if i else text for i, text in enumerate(said)) or None

    def _finished_nones(self) -> list:
        return [run for run in self.runs if run["codec"] == "none" and run["status"] == "finished" and run["lr_factor"] == self.best_factor("none")]

    def _judged_seeds(self) -> list:
        """The seed that chose the learning rates is none of those that judge, where there is another one."""
        seeds = self.settings["seeds"]
        return seeds[1:] if len(self.settings["lr_factors"]) > 1 and len(seeds) > 1 else seeds

    @property
    def arms(self) -> list:
        """One dictionary for each codec, none first."""
        if self._arms is None:
            self._arms = self._judge()
        return self._arms

    def _pairs(self, codec: str) -> list:
        """(its run, none's) of each seed that judges and that both have finished; of the first seed where it has no other one."""
        both = [(self.run(codec, seed, self.best_factor(codec)), self.run("none", seed, self.best_factor("none"))) for seed in self.settings["seeds"]]
        found = [(run, none) for run, none in both if run and none and run["status"] == none["status"] == "finished"]
        return [pair for pair in found if pair[0]["seed"] in self._judged_seeds()] or found

    def _judge(self) -> list:
        pairs = {codec: self._pairs(codec) for codec in self.settings["codecs"]}
        worse = {codec: np.array([self._cost(run) - self._cost(none) for run, none in both]) for codec, both in pairs.items()}
        noise = {codec: _noise(both) for codec, both in pairs.items() if codec != "none" and both and np.isfinite(worse[codec]).all()}
        return [self._arm(codec, pairs[codec], worse[codec], *_spread(codec, worse, noise)) for codec in self.settings["codecs"]]

    def _arm(self, codec: str, pairs: list, worse: np.ndarray, spread: Optional[float], degrees: int) -> dict:
        runs = [run for run in self.runs if run["codec"] == codec]
        ended = next((run for run in runs if run["status"] != "finished" and run["lr_factor"] in (self.best_factor(codec), None)), None)
        if ended is None and self.best_factor(codec) is None:      # with none of several learning rates did it finish
            ended = next((run for run in runs if run["status"] != "finished"), None)
        way = next((run["way"] for run in runs if "way" in run), None)      # older records have none
        arm: dict = {"codec": codec, "name": self.names[codec], "way": way, "verdict": "undecided", "reason": None, "seeds": len(pairs),
                     "lr_factor": self.best_factor(codec) if any(run["status"] == "finished" for run in runs) else None,
                     "value": None, "worse_by": None, "low": None, "high": None, "same_as_none": None, "sent": None}
        shown = [run for run, _ in pairs] or ([ended] if ended is not None else [])
        none_bytes = next((run["bytes_sent_per_step"] for run in self.runs if run["codec"] == "none"), None)
        sent = [run["bytes_sent_per_step"] for run in shown if run["bytes_sent_per_step"] is not None]
        if sent and none_bytes:
            arm["sent"] = float(np.mean(sent)) / none_bytes
        if pairs:
            # Seeds differ by more than codecs do: an arm with other seeds than none's would look better or worse than it is.
            none = [float(np.mean([self._value(run) for _, run in both])) for both in (self._pairs("none"), pairs)]
            arm["value"] = float(np.mean([self._value(run) for run, _ in pairs])) + (none[0] - none[1])
            arm["worse_by"] = float(worse.mean())
            arm["same_as_none"] = float(np.mean([self._progress(run, none) for run, none in pairs]))
            if spread is not None and codec != "none" and len(worse) > 1:
                half = _student(degrees) * spread / math.sqrt(len(worse))
                arm["low"], arm["high"] = arm["worse_by"] - half, arm["worse_by"] + half
        for key, value in arm.items():
            if isinstance(value, float) and not math.isfinite(value):
                arm[key] = None
        window = _window(self.settings["steps"])
        self._decide(arm, worse, ended, all(run["reached"] for run, _ in pairs),
                     bool(pairs) and all(_is_far_behind(run["losses"], none["losses"], _FAR_BEHIND, window) for run, none in pairs))
        return arm

    def _progress(self, run: dict, none: dict) -> float:
        window = _window(self.settings["steps"])
        level = float(np.mean(run["losses"][-window:]))
        if level <= np.mean(none["losses"][-window:]):
            return len(none["losses"]) / self.settings["steps"]
        # The level is a mean over a window, so that none has it half a window after its losses are there.
        steps = _steps_to(none["losses"], level) + (window - 1) // 2
        return min(len(none["losses"]), steps) / self.settings["steps"]

    def _decide(self, arm: dict, worse: np.ndarray, ended: Optional[dict], reached: bool, far_behind: bool) -> None:
        if arm["codec"] == "none":
            arm["verdict"] = "baseline"
        elif ended is not None and ended["status"] == "failed":
            arm.update(verdict="failed", reason=ended["message"])
        elif ended is not None:
            how = "diverged" if ended["status"] == "diverged" else "was stopped far behind none"
            arm.update(verdict="loses", reason=f"{how} at step {ended['steps']} with seed {ended['seed']}")
        elif arm["value"] is None:
            if arm["seeds"]:
                arm.update(verdict="loses", reason="what train() returned is not finite")
            else:
                arm["reason"] = "there is no seed with which both it and none have finished"
        elif self.tolerance <= 0.0:
            arm["reason"] = "none itself has learned nothing"
        elif not reached:
            arm["reason"] = f"the codec has not been at work in {self.settings['steps']} steps"
        elif far_behind and arm["worse_by"] > self.tolerance:
            arm.update(verdict="loses", reason="far behind none")
        elif (worse > 10 * self.tolerance).all():
            arm.update(verdict="loses", reason="far beyond the tolerance with every seed")
        elif arm["low"] is None:
            arm["reason"] = "one seed has no interval"
        elif arm["high"] <= self.tolerance:
            arm["verdict"] = "learns"
        elif arm["low"] > self.tolerance:
            arm["verdict"] = "loses"
        else:
            arm["reason"] = _what_would_tell(arm, self.tolerance)

    def frame(self) -> Any:
        """The arms as a pandas DataFrame."""
        from ._program import _pandas
        return _pandas().DataFrame(self.arms)

    def save(self, path: Union[str, os.PathLike]) -> None:
        """Writes the record. What is there already is replaced when the new one is whole."""
        elements = next((run["elements"] for run in self.runs if run["elements"]), None)
        record = {"format": FORMAT, "schema_version": SCHEMA, "model": self.name, "elements": elements, "settings": self.settings,
                  "tolerance": self.tolerance, "judged": self._judged_by(), "warning": self.warning, "arms": self.arms, "runs": self.runs}
        text = json.dumps(record, allow_nan=False, indent=1) + "\n"
        path = os.path.realpath(as_text(path))
        written = beside(path)
        try:
            with open(written, "x", encoding="utf-8") as file:
                file.write(text)
            os.replace(written, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(written)
            raise

    def _judged_by(self) -> str:
        judge = self.settings["judge"]
        return f"the {judge} that train() returned" if self.judges_returned() else "the training loss over the last tenth of the steps"

    def __str__(self) -> str:
        settings, rates = self.settings, len(self.settings["lr_factors"]) > 1
        limit = "" if settings["tolerance"] is not None else " (2 % of what the loss falls by)"
        seeds = ", ".join(map(str, self._judged_seeds()))
        lines = [f"{self.name or 'Model'}: {settings['workers']} workers, {settings['steps']} steps, seeds {seeds}. Judged by {self._judged_by()}, "
                 f"which may be worse than without a codec by {self.tolerance:.3g}{limit}.", ""]
        table = [["codec", "way", *(["rate x"] if rates else []), settings["judge"], "worse by", "95 %", "as none after", "bytes sent", "verdict"]]
        for arm in self.arms:
            number = lambda key, form: "" if arm[key] is None else format(arm[key], form)
            interval = "" if arm["low"] is None else f"{arm['low']:+.3g} to {arm['high']:+.3g}"
            steps = "" if arm["same_as_none"] is None else f"{round(arm['same_as_none'] * settings['steps'])} steps"
            verdict = arm["verdict"] + (f": {arm['reason']}" if arm["reason"] else "")
            baseline = arm["codec"] == "none"
            table.append([arm["name"], arm["way"] or "", *([number("lr_factor", "g")] if rates else []), number("value", ".4g"),
                          "" if baseline else number("worse_by", "+.3g"), interval, steps, number("sent", ".3g"), verdict])
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]
        learning = [arm for arm in self.arms if arm["verdict"] == "learns" and arm["sent"] is not None and arm["sent"] < 1.0]
        if learning:
            least = min(learning, key=lambda arm: arm["sent"])
            lines += ["", f"Of those that learn, {least['name']} sends least among {settings['workers']} workers: {least['sent']:.3g} of the bytes of none. "
                      "gradtool bench --trained with this record says which is fastest on a network."]
        if self.warning:
            lines += ["", f"Warning: {self.warning}."]
        notes = sorted({f"{self.names[run['codec']]}: {run['note']}." for run in self.runs if run["note"]})
        return "\n".join(lines + ([""] + notes if notes else []))

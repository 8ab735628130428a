"""Checks the settings of a trial, and reads what an earlier call with the same settings has left."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import operator
import os
import sys
import warnings
from typing import Any, Callable, Iterable, Optional

import numpy as np
from torch import distributed as dist

from . import _core
from ._errors import DataError, UsageError
from ._places import as_text, beside
from ._trial_result import FORMAT, SCHEMA, TrialResult

BASELINE = "none"
#: Factors that lr_factors="tune" tries.
_FACTORS = (1.0, 0.5, 0.25, 0.1, 2.0)
#: Bytes that a record has at most, as for the program.
_MOST_BYTES = 1 << 30


def of_ranks(value: Any) -> list:
    """Gathers each rank's value."""
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def checked_settings(train: Callable, codecs: Iterable[str], steps: int, workers: Optional[int], seeds: Any, lr_factors: Any, judge: str,
              higher_is_better: bool, tolerance: Optional[float], scheme: str, bucket_mb: float, stop_early: bool, distributed: bool) -> dict:
    """All that decides the numbers, checked."""
    def valid(condition: bool, sentence: str) -> None:
        if not condition:
            raise UsageError(sentence)

    def whole(what: str, value: Any, low: int, high: int) -> int:
        try:
            given = operator.index(value)
        except TypeError:
            given = low - 1
        valid(low <= given <= high, f"{what} is {value!r}; valid is a whole number of {low} to {high}")
        return given

    def number(what: str, value: Any) -> float:
        valid(isinstance(value, (int, float, np.number)) and 0 < value <= sys.float_info.max, f"{what} is {value!r}; valid is a number above 0")
        return float(value)

    def listed(what: str, value: Any) -> list:
        valid(hasattr(value, "__iter__") and not isinstance(value, str), f"{what} is {value!r}; valid is a list of numbers")
        return list(value)

    valid(callable(train), f"train is of the type {type(train).__name__}; valid is a function that takes a Trial")
    valid(hasattr(codecs, "__iter__") and not isinstance(codecs, str), f"codecs is {codecs!r}; valid is a list of codecs")
    names = {BASELINE: BASELINE}
    for spec in codecs:
        valid(isinstance(spec, str), f"codec {spec!r} is of the type {type(spec).__name__}; valid is a text such as 'topk:ratio=0.01'")
        parsed = _core.parse_codec(spec)
        valid(not parsed["needs_second_moment"],
              f"codec {parsed['name']} needs the second moments of micro-batches, which a trial does not have; gradtool train has them")
        names.setdefault(f"{parsed['name']}:{parsed['params']}" if parsed["params"] else parsed["name"], spec)
    valid(len(names) > 1, "there is no codec to try; valid is at least one besides none")
    steps = whole("steps", steps, 20, 10**9)
    if distributed:
        valid(workers in (None, dist.get_world_size()), f"workers is {workers}, and the process group has {dist.get_world_size()} ranks, "
              f"which are the workers; leave workers out")
        workers = dist.get_world_size()
    workers = whole("workers", 4 if workers is None else workers, 2, 1024)
    seeds = [whole("a seed", seed, 0, 2**63 - 1) for seed in (range(1, whole("seeds", seeds, 1, 1000) + 1) if not hasattr(seeds, "__iter__") else seeds)]
    valid(len(seeds) > 0 and len(set(seeds)) == len(seeds), f"seeds are {seeds}; valid is their number, or different ones")
    factors = list(_FACTORS) if lr_factors == "tune" else [number("an lr_factor", factor) for factor in listed("lr_factors", lr_factors)]
    valid(len(factors) > 0 and len(set(factors)) == len(factors), f"lr_factors are {factors}; valid are different ones, or 'tune'")
    valid(len(factors) == 1 or len(seeds) != 2, "lr_factors with two seeds leave one seed to judge by, which has no interval; valid are three seeds or more")
    valid(isinstance(judge, str), f"judge is {judge!r}; valid is the name of a number that train() returns")
    valid(judge == "loss" or tolerance is not None, f"the judge is '{judge}'; valid is tolerance= with it, by how much it may be worse than without a codec")
    valid(judge != "loss" or not higher_is_better, "a loss is better the lower it is; give judge= the name of another number with higher_is_better")
    tolerance = None if tolerance is None else number("tolerance", tolerance)
    valid(scheme in ("auto", "sum", "gather", "hop", "alltoall"), f"scheme is '{scheme}'; valid is auto, sum, gather, hop or alltoall")
    bucket_mb = number("bucket_mb", bucket_mb)
    for spec in names:
        if spec != BASELINE:      # before none has been trained
            _core.WorkersReducer(spec, [("weight", [8, 8], "linear", "OI", 0.0)], scheme, workers)
    settings = {"codecs": list(names), "names": list(names.values()), "steps": steps, "workers": workers, "seeds": seeds,
                "lr_factors": factors, "judge": judge, "higher_is_better": bool(higher_is_better), "tolerance": tolerance, "scheme": scheme,
                "bucket_mb": bucket_mb, "stop_early": bool(stop_early), "distributed": distributed, "train_sha256": _source_of(train)}
    if distributed and any(theirs != settings for theirs in of_ranks(settings)):
        raise UsageError("the ranks call trial with different arguments; every rank needs the same")
    return settings


def _closed_over(function: Any) -> list:
    values = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):      # an empty cell
            values.append(cell.cell_contents)
    return values


def _source_of(train: Callable) -> Optional[str]:
    """A hash of the source of `train` and of what it is bound to; not of what it calls. None where there is no source."""
    bound = []
    while isinstance(train, functools.partial):
        bound.append(repr((train.args, sorted(train.keywords.items()))))
        train = train.func
    # Numbers and texts that it was made with, such as the learning rate of a function that makes it. Other objects differ from run to run.
    defaults = (*(getattr(train, "__defaults__", None) or ()), *(getattr(train, "__kwdefaults__", None) or {}).values())
    for value in (*defaults, *_closed_over(train)):
        if isinstance(value, (int, float, str, bytes, type(None))):
            bound.append(repr(value))
    try:
        return hashlib.sha256("".join([inspect.getsource(train), *bound]).encode()).hexdigest()
    except (OSError, TypeError):
        return None


class RecordFile:
    """trial.json while a trial runs, as this trial knows it, so that two trials do not write one file in turns."""

    def __init__(self, path: str) -> None:
        self._path, self._known = path, _identity(path)

    def save(self, result: TrialResult) -> None:
        """Raises UsageError where somebody else has written the file since; warns where it cannot be written."""
        if _identity(self._path) not in (None, self._known):
            raise UsageError(f"{self._path} was written by another trial, or by hand, while this one ran, and what this one did since is not "
                             f"recorded; give each trial a file of its own (out=)")
        try:
            result.save(self._path)
            self._known = _identity(self._path)
        except OSError as error:
            warnings.warn(f"{self._path} could not be written ({error}); the trial goes on without it")


def _identity(path: str) -> Optional[tuple]:
    """Tells a file from one that was written to its place; None where nothing is there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _grown(settings: dict, recorded: dict) -> dict:
    """The settings with the codecs and seeds of a record in front, which may be other ones: a run depends on neither."""
    if not all(isinstance(recorded[key], list) for key in ("codecs", "names", "seeds")):
        raise ValueError("its codecs or seeds are no lists")
    names = dict(zip(recorded["codecs"], recorded["names"])) | dict(zip(settings["codecs"], settings["names"]))
    return {**settings, "codecs": list(names), "names": list(names.values()), "seeds": list(dict.fromkeys(recorded["seeds"] + settings["seeds"]))}


def _may_be_record(path: str) -> bool:
    """Whether a file begins as JSON does. One that cannot be read may be a record; reading it says why it cannot."""
    try:
        with open(path, "rb") as file:
            return file.read(4096).lstrip()[:1] in (b"", b"{")
    except OSError:
        return True


def resumed(path: Optional[str], settings: dict, replace: bool) -> tuple:
    """Runs that a trial of these settings has made already, the model's name, and the settings with the record's codecs and seeds."""
    if path is None:
        return [], None, settings
    try:
        trying = beside(as_text(path))
        with open(trying, "x", encoding="utf-8"):
            pass
        os.remove(trying)
        with contextlib.suppress(FileNotFoundError):
            os.lstat(path)  # a name may be too long
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); give a path in a folder that is there") from error
    if not os.path.lexists(path):
        return [], None, settings
    if not os.path.isfile(path):
        raise UsageError(f"{path} is no plain file, and a record is not written in its place; give another path")
    if replace:
        if not _may_be_record(path):
            raise UsageError(f"{path} exists and is no record in JSON, so it is kept; give another path, or remove it")
        return [], None, settings
    try:
        if os.path.getsize(path) > _MOST_BYTES:
            raise ValueError("it has more than a gibibyte")
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        if record["format"] != FORMAT or record["schema_version"] != SCHEMA:
            raise ValueError("another format")
        grown = _grown(settings, record["settings"])
        differ = [key for key in grown if record["settings"].get(key) != grown[key] and key not in ("codecs", "names", "seeds")]
        # The first seed chooses the learning rates.
        if len(settings["lr_factors"]) > 1 and settings["seeds"][0] != grown["seeds"][0]:
            differ.append("seeds[0]")
        # A run that failed may have met a passing fault, such as a lack of memory.
        runs, model = [run for run in record["runs"] if run["status"] != "failed" or run["codec"] not in settings["codecs"]], record["model"]
        if any(run["status"] not in ("finished", "diverged", "stopped", "failed") for run in runs) or \
                any(type(seed) is not int or seed < 0 for seed in grown["seeds"]):
            raise ValueError("a run has no such status, or a seed is no number")
        if not differ:
            result = TrialResult(grown, runs)
            json.dumps([str(result), result.arms, runs], allow_nan=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, MemoryError) as error:
        raise DataError(f"{path} is no record of a trial ({error}); give another path, or replace=True") from error
    if runs and settings["train_sha256"] is None:
        raise UsageError(f"{path} is there, and train has no source by which to tell whether it is of the same trial; give another path, or replace=True")
    if differ:
        raise UsageError(f"{path} is of another trial (it differs in {', '.join(differ)}); give another path, or replace=True")
    return runs, model, grown

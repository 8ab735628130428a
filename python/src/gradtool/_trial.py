"""Trainings of the user's own with codecs in the loop, beside the same training without one. Needs torch and the compiled module."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import sys
import time
import traceback
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Union

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from . import _core
from ._errors import Error, UsageError
from ._modules import describe_tensor, inner_module
from ._places import as_text
from ._trial_result import TrialResult, _end_of, has_no_effect, is_hopeless
from ._trial_settings import BASELINE, RecordFile, checked_settings, of_ranks, resumed
from ._writer import producer


class EndOfTrial(Exception):
    """Raised by a step behind the last one, to leave a `train` that does not look at `trial.done`, and that returns nothing then."""


class _Unpaired(UsageError):
    """Runs that should differ in the codec alone began differently."""


class Trial:
    """One run: a codec, a seed and a factor of the learning rate. `gradtool.trial` hands it to `train`.

    for step in trial:          # numbers of steps, until the run has all of them or is hopeless
        trial.step(model, optimizer, (loss_of(model, batch) for batch in batches_of(step)))
    """

    def __init__(self, codec: str, seed: int, workers: int, steps: int, lr_factor: float, plan: "_Plan",
                 reference: Optional[dict]) -> None:
        #: The codec with all of its parameters.
        self.codec = codec
        #: What weights and the order of data are to be drawn from. Python's, NumPy's and PyTorch's generators are seeded with it.
        self.seed = seed
        #: Losses that `step` takes: one for each worker. In a process group each rank gives its own one.
        self.workers = workers
        #: Steps of a run.
        self.steps = steps
        #: What `step` multiplies learning rates with.
        self.lr_factor = lr_factor
        #: Whether there are no more steps to make.
        self.done = False
        self._plan, self._reference = plan, reference
        self._status = "unfinished"
        self._losses: list = []
        self._model: Optional[nn.Module] = None
        self._averaging: Any = None
        self._first_rate: Optional[float] = None

    def __iter__(self) -> Iterator[int]:
        while not self.done:
            made = len(self._losses)
            yield made
            if len(self._losses) == made:
                raise UsageError("a turn of the loop made no step; call trial.step or trial.backward in each")

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, losses: Any) -> float:
        """Clears gradients, then `backward`, then `optimizer.step()` with the learning rates times `lr_factor`. Returns the mean loss."""
        optimizer.zero_grad()
        loss = self.backward(model, losses, optimizer)
        with _scaled_rates(optimizer, self.lr_factor):
            optimizer.step()
        return loss

    def backward(self, model: nn.Module, losses: Any, optimizer: Optional[torch.optim.Optimizer] = None) -> float:
        """Leaves in every parameter's `grad` what the codec makes of the mean of the workers' gradients.

        For what `step` does not do, such as clipping: the caller clears gradients before it and updates weights behind it, with
        learning rates times `lr_factor`. `losses` has one scalar a worker; a generator keeps one graph at a time in memory.
        In a process group it is this rank's loss, and `model` a DistributedDataParallel. Returns the mean over workers.
        """
        if self.done:
            raise EndOfTrial()
        if self._model is None:
            self._model = model
            averaging = _Ranks if self._plan.distributed else _Workers
            self._averaging = averaging(model, self.codec, self.workers, self._plan.scheme, self.seed, self._plan.bucket_bytes)
        elif model is not self._model:
            raise UsageError("a run of a trial trains one model, and this is another one; make it once, before the loop")
        rate = None if optimizer is None else float(optimizer.param_groups[0]["lr"])
        if self._first_rate is None:
            self._first_rate = rate
        loss = self._averaging.backward(losses, len(self._losses), rate / self._first_rate if rate and self._first_rate else 1.0)
        self._losses.append(loss)
        if len(self._losses) == 1:
            self._check_first(loss)
        self._judge(loss)
        self._plan.progress.step(self)
        return loss

    def _check_first(self, loss: float) -> None:
        """Runs of a seed begin with the same weights and data, or their differences would mean nothing."""
        if self._reference is None or not math.isfinite(loss):
            return
        expected = self._reference["losses"][0]
        if abs(loss - expected) > 1e-3 * abs(expected) + 1e-9:
            raise _Unpaired(f"the first loss of {self.codec} with seed {self.seed} is {loss:.6g}, and without a codec it was {expected:.6g}; "
                            f"train() must make its weights and the order of its data of trial.seed alone")

    def _judge(self, loss: float) -> None:
        if not math.isfinite(loss):
            self._status = "diverged"
        elif len(self._losses) == self.steps:
            self._status = "finished"
        elif self._plan.stop_early and self._reference is not None and is_hopeless(self._losses, self._reference["losses"], self.steps):
            self._status = "stopped"
        self.done = self._status != "unfinished"

    def _record(self, metrics: dict, message: Optional[str]) -> dict:
        made = len(self._losses)
        return {"codec": self.codec, "way": _core.way_of(self.codec, self._plan.scheme), "seed": self.seed, "lr_factor": self.lr_factor,
                "status": self._status, "steps": made,
                "message": message, "note": "; ".join(filter(None, [self._averaging.note if self._averaging else "", _of_optimizers(self.codec)])),
                "reached": self._averaging is not None and self._averaging.reached,
                "bytes_sent_per_step": self._averaging.bytes_sent / made if made else None,
                "elements": None if self._averaging is None else self._averaging.elements, "producer": producer(f"Python, torch {torch.__version__}"),
                "metrics": {key: _finite(value) for key, value in metrics.items()}, "losses": [_finite(value) for value in self._losses]}


def _of_optimizers(codec: str) -> str:
    """Returns the demand that the codec makes on the optimizer; empty: there is none."""
    parsed = _core.parse_codec(codec)
    if parsed["target"]:
        return f"its result stands for {parsed['target']}, not for the mean gradient, and wants an optimizer made for that"
    return "it brings momentum of its own, beside which the optimizer should have none" if parsed["own_momentum"] else ""


def _finite(value: float) -> Optional[float]:
    """JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


@contextlib.contextmanager
def _scaled_rates(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate


def _trained(model: nn.Module) -> list:
    """(name, parameter) of what is trained."""
    found = [(name, p) for name, p in inner_module(model).named_parameters() if p.requires_grad and p.numel() > 0]
    if not found:
        raise UsageError("the model has no parameter that needs a gradient")
    for name, p in found:
        if p.is_complex():
            raise UsageError(f"parameter {name} has the type {p.dtype}; valid are real numbers")
    return found


def _scalar(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise UsageError("a loss is no tensor of one element with a graph; valid is what a training calls backward() on")
    return loss


class _Workers:
    """Workers of one process: each loss's gradient is that of a worker, and the real reducers average them as threads."""

    def __init__(self, model: nn.Module, codec: str, workers: int, scheme: str, seed: int, bucket_bytes: int) -> None:
        self._workers, self._seed, self._model = workers, seed, model
        modules, parameters = dict(inner_module(model).named_modules()), _trained(model)
        self._parameters = [p for _, p in parameters]
        self.elements, before, described = sum(p.numel() for p in self._parameters), 0, []
        for name, p in parameters:
            shape = tuple(p.shape) or (1,)
            described.append((name, list(shape), *describe_tensor(modules[name.rpartition(".")[0]], name, shape), before / self.elements))
            before += p.numel()
        needs_weight = _core.parse_codec(codec)["needs_weight"]
        self._buckets = []
        for chosen in _buckets(self._parameters, bucket_bytes):
            n = sum(self._parameters[i].numel() for i in chosen)
            reducer = _core.WorkersReducer(codec, [described[i] for i in chosen], scheme, workers)
            self._buckets.append(([self._parameters[i] for i in chosen], torch.zeros(workers, n),
                                  torch.empty(n) if needs_weight else None, reducer))

    @property
    def bytes_sent(self) -> int:
        return sum(reducer.bytes_sent for *_, reducer in self._buckets)

    @property
    def note(self) -> str:
        return next((reducer.note for *_, reducer in self._buckets if reducer.note), "")

    @property
    def reached(self) -> bool:
        return any(reducer.reached for *_, reducer in self._buckets)

    def close(self) -> None:
        """Nothing outlives the run."""

    def backward(self, losses: Iterable, step: int, rate_ratio: float) -> float:
        if any(a is not b for a, (_, b) in itertools.zip_longest(self._parameters, _trained(self._model), fillvalue=(None, None))):
            raise UsageError("other parameters need gradients than at the first step; valid is to freeze and unfreeze before the loop")
        if isinstance(losses, torch.Tensor) and losses.dim() == 0:
            raise UsageError(f"there is one loss for {self._workers} workers; valid is one for each")
        total, seen = 0.0, 0
        used: set = set()
        for loss in losses:
            if seen == self._workers:
                raise UsageError(f"there are more losses than workers; valid is one for each of the {self._workers}")
            for p in self._parameters:
                p.grad = None
            _scalar(loss).backward()
            total += float(loss.detach())
            self._collect(seen, used)
            seen += 1
        if seen < self._workers:
            raise UsageError(f"there are {seen} losses for {self._workers} workers; valid is one for each")
        for number, (parameters, values, weight, reducer) in enumerate(self._buckets):
            if weight is not None:
                torch.cat([p.detach().reshape(-1).float().cpu() for p in parameters], out=weight)
            # A value that is not finite would stay in residuals for ever; the hook leaves the codec out there, too.
            if bool(torch.stack(torch.aminmax(values)).isfinite().all()):
                reducer.reduce(values.numpy(), None if weight is None else weight.numpy(), seed=self._seed, step=step, tensor=number,
                               learning_rate_ratio=rate_ratio)
                mean = values[0]
            else:
                mean = values.mean(0)
            begin = 0
            for p in parameters:
                part = mean[begin:begin + p.numel()].reshape(p.shape)
                p.grad = part.to(device=p.device, dtype=p.dtype, copy=True) if id(p) in used else None
                begin += p.numel()
        return total / self._workers

    def _collect(self, worker: int, used: set) -> None:
        """Copies the gradients of a worker to its row, in logical order. A parameter that it did not use counts as zero."""
        for parameters, values, *_ in self._buckets:
            begin = 0
            for p in parameters:
                row = values[worker, begin:begin + p.numel()]
                begin += p.numel()
                if p.grad is None:
                    row.zero_()
                    continue
                if p.grad.is_sparse:
                    raise UsageError("a gradient is sparse, and codecs take dense ones; make the embedding with sparse=False")
                row.copy_(p.grad.reshape(-1))
                used.add(id(p))


def _buckets(parameters: Sequence, limit: int) -> Iterator[list]:
    """Positions of the parameters of each bucket, filled as DistributedDataParallel does: from the last one on, the first bucket to 1 MiB."""
    chosen, size, full = [], 0, min(limit, 2**20)
    for i in reversed(range(len(parameters))):
        chosen.append(i)
        size += 4 * parameters[i].numel()
        if size >= full:
            yield chosen
            chosen, size, full = [], 0, limit
    if chosen:
        yield chosen


class _Ranks:
    """The ranks of a process group, whose DistributedDataParallel averages through `ddp_hook`."""

    def __init__(self, model: nn.Module, codec: str, _workers: int, scheme: str, seed: int, _bucket_bytes: int) -> None:
        from ._hook import ddp_hook
        if not isinstance(model, nn.parallel.DistributedDataParallel):
            raise UsageError(f"there is a process group, and the model is of the type {type(model).__name__}; "
                             f"valid is a DistributedDataParallel, made within train()")
        self._hook = ddp_hook(codec, scheme=scheme, seed=seed).register(model)
        self.elements = sum(p.numel() for _, p in _trained(model))
        self.bytes_sent, self.note, self.reached = 0, "", True

    def close(self) -> None:
        """Notes what the hook knows, and gives its threads and its process group back."""
        self.bytes_sent = max(of_ranks(self._hook.bytes_sent))
        self.note, self.reached = self._hook.note, self._hook.reached
        self._hook.close()

    def backward(self, losses: Any, _step: int, _rate_ratio: float) -> float:
        losses = [losses] if isinstance(losses, torch.Tensor) else list(losses)
        if len(losses) != 1:
            raise UsageError(f"there are {len(losses)} losses; in a process group valid is one, this rank's")
        loss = _scalar(losses[0])
        loss.backward()
        return _mean_of_ranks(float(loss.detach()))


def _mean_of_ranks(value: float) -> float:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    number = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(number)
    return number.item() / dist.get_world_size()


class _Progress:
    """A line on standard error for each run; on a terminal it shows the steps, too."""

    def __init__(self, runs: int, made: int, names: dict, shown: bool) -> None:
        self._names = names
        self._runs, self._shown, self._run, self._last = runs, shown, made, 0.0
        self._live = shown and sys.stderr.isatty()

    def step(self, trial: Trial) -> None:
        if self._live and (trial.done or time.monotonic() - self._last > 0.2):
            self._last = time.monotonic()
            self._write("\r\x1b[K" + self._line(trial.codec, trial.seed, trial.lr_factor) +
                        f", step {len(trial._losses)} of {trial.steps}, loss {trial._losses[-1]:.4g}")

    def run(self, record: dict) -> None:
        self._run += 1
        losses = [value for value in record["losses"] if value is not None]
        loss = f", training loss {_end_of(losses):.4g}" if losses else ""
        why = f": {record['message']}" if record["message"] else ""
        self._write(("\r\x1b[K" if self._live else "") + self._line(record["codec"], record["seed"], record["lr_factor"], 0) +
                    f", {record['status']} after {record['steps']} steps{loss}{why}\n")

    def interrupted(self, path: Optional[str]) -> None:
        kept = "nothing is kept without out=" if path is None else f"{path} has the runs that ended, and the same call begins with this one"
        self._write(("\r\x1b[K" if self._live else "") + f"trial: interrupted in run {self._run + 1}: {kept}\n")

    def _line(self, codec: str, seed: int, factor: float, ahead: int = 1) -> str:
        rate = "" if factor == 1.0 else f", learning rate times {factor:g}"
        return f"trial: run {self._run + ahead} of at most {self._runs}, {self._names[codec]}, seed {seed}{rate}"

    def _write(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(text)
            sys.stderr.flush()


class _Plan:
    """The settings and objects that the runs of a trial share."""

    def __init__(self, distributed: bool, scheme: str, bucket_bytes: int, stop_early: bool, progress: _Progress) -> None:
        self.distributed, self.scheme, self.bucket_bytes = distributed, scheme, bucket_bytes
        self.stop_early, self.progress = stop_early, progress


def trial(train: Callable[[Trial], Any], codecs: Iterable[str], *, steps: int, workers: Optional[int] = None,
          seeds: Union[int, Sequence[int]] = 3, lr_factors: Union[str, Sequence[float]] = (1.0,), judge: str = "loss",
          higher_is_better: bool = False, tolerance: Optional[float] = None, scheme: str = "auto", bucket_mb: float = 25.0,
          stop_early: bool = True, out: Union[str, os.PathLike, None] = None, replace: bool = False,
          name: Optional[str] = None, progress: bool = True) -> TrialResult:
    """Trains with each codec in the loop and without one, and tells which of them learn.

        def train(trial):
            model, optimizer = ...                       # made of trial.seed, which is set already
            for step in trial:
                trial.step(model, optimizer, (loss_of(model, batch(step, w)) for w in range(trial.workers)))
            return held_out_loss(model)                  # or {"loss": ..., "accuracy": ...}, or nothing

        print(gradtool.trial(train, ["bf16", "powersgd:rank=4", "topk:ratio=0.01"], steps=300, workers=4, out="trial.json"))

    In one process the losses of a step are those of `workers` workers, whose gradients go through the reducers that `bench`
    measures, as threads, with every worker's own residuals and draws; gradients are reduced on the CPU. In a process group
    (`torchrun`) every rank calls `trial`, `train` wraps its model in DistributedDataParallel, the ranks are the workers, and
    `ddp_hook` averages; `step` takes the rank's own loss.

    Parameters
    ----------
    train:
        Called once for each run, with a `Trial`. It makes model, optimizer and data anew, loads a checkpoint where the trial
        is about a later phase of a training, and makes the steps. All runs of a seed must begin with the same weights and see
        the same data. What it returns is judged: the loss on data that was held out, or a mapping of numbers with one of that name.
    codecs:
        As on the command line. `none`, what they are compared with, is added in front.
    steps, workers, seeds:
        Steps of each run; workers in one process (4 when left out); seeds, their number (3: 1, 2 and 3) or themselves.
    lr_factors:
        Learning rates are multiplied with each of these in the first seed, for every codec and for none; the other seeds
        run with the factor that did best, and they alone are judged where there are any: give three seeds or more. "tune": 1, 0.5, 0.25,
        0.1 and 2.
    judge, higher_is_better, tolerance:
        The number of `train`'s that decides, and by how much it may be worse than without a codec; when left out, 2 % of what
        the training loss falls by without one. A `train` that returns no loss is judged by the training loss over the last tenth of the steps.
    scheme, bucket_mb:
        The way to reduce, as bench's --reduce, and in one process the MiB of a bucket, as DistributedDataParallel's bucket_cap_mb.
    stop_early:
        Ends a run that is where none was after a third of its steps, by more than 5 % of what none's loss falls by and without
        catching up, and drops its codec.
    out, replace:
        trial.json, written after every run. A trial that was interrupted goes on from it, and one of other codecs or more seeds adds to
        it: what has run does not run again. One of other settings, or of a `train` of another source, is refused unless `replace` is given. A `train` whose source cannot be read cannot be resumed, and changes
        in the functions that it calls are not noticed.
    name, progress:
        The model's name in the record (its class when left out); whether runs are shown on standard error.

    Each difference to none is taken within a seed. Its interval (95 %, Student's t) rests on the spread of these differences over
    seeds, pooled over the codecs whose losses deviate from none's about as much, step by step. With one seed there is none, and only
    what is far off is decided.
    """
    distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    path = None if out is None else os.path.realpath(as_text(out))
    if not isinstance(name, (str, type(None))):
        raise UsageError(f"name is {name!r}; valid is a text")
    settings = checked_settings(train, codecs, steps, workers, seeds, lr_factors, judge, higher_is_better, tolerance, scheme,
                                bucket_mb, stop_early, distributed)
    leads = not distributed or dist.get_rank() == 0
    runs, model, settings, asked = *_from_rank_0(lambda: resumed(path, settings, replace), distributed), settings
    record_file = RecordFile(path) if path is not None and leads else None
    result = TrialResult(settings, runs, name or model)
    planned = len(asked["seeds"]) * len(asked["codecs"]) + (len(asked["lr_factors"]) - 1) * len(asked["codecs"])
    made = sum(run["codec"] in asked["codecs"] and run["seed"] in asked["seeds"] for run in runs)
    plan = _Plan(distributed, scheme, int(bucket_mb * 2**20), stop_early, _Progress(planned, made, result.names, progress and leads))
    for seed, codec in itertools.product(asked["seeds"], asked["codecs"]):
        for factor in result.factors_for(codec, seed):
            if result.run(codec, seed, factor) is not None or codec != BASELINE and seed in result.lost_seeds():
                continue
            reference = None if codec == BASELINE and factor == settings["lr_factors"][0] else result.reference(seed)
            made = Trial(codec, seed, settings["workers"], steps, factor, plan, reference)
            try:
                record = _run(train, made, settings, result)
            except KeyboardInterrupt:
                plan.progress.interrupted(path)
                raise
            result.add(record)
            plan.progress.run(record)
            first = result.run(codec, seed, settings["lr_factors"][0])
            if first is not None and factor != first["lr_factor"] and record["status"] == "finished" and has_no_effect(record, first):
                raise UsageError(f"the losses with learning rates times {factor:g} are those without; a train that calls trial.backward "
                                 f"multiplies learning rates with trial.lr_factor itself")
            _from_rank_0(lambda: record_file and record_file.save(result), distributed)
    return result


def _run(train: Callable, made: Trial, settings: dict, result: TrialResult) -> dict:
    random.seed(made.seed)
    np.random.seed(made.seed % 2**32)
    torch.manual_seed(made.seed)
    returned, message = None, None
    try:
        returned = train(made)
    except EndOfTrial:
        pass
    except _Unpaired:
        raise
    except Exception as error:  # pylint: disable=broad-except
        # Without a codec it is the training itself that fails, or what it came to. With one it may be that the codec does not fit.
        if made.codec == BASELINE and not (made._status == "diverged" and made.seed != settings["seeds"][0]):
            raise
        if made._status not in ("diverged", "stopped"):
            made._status, message = "failed", str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            if settings["distributed"]:
                traceback.print_exc()      # other ranks may wait for this one, and then nobody sees the message
    if made._status == "unfinished":
        message = f"train() ended after {len(made._losses)} of {made.steps} steps; loop over the trial: for step in trial"
        if made.codec == BASELINE:
            raise UsageError(message)
        made._status = "failed"
    metrics = _numbers(returned, settings["judge"], settings["distributed"])
    if made._averaging is not None:
        if result.name is None:
            result.name = type(inner_module(made._model)).__name__
        made._averaging.close()
    record = made._record(metrics, message)
    judge = settings["judge"]
    if made._reference is None:
        _expect_reference(record, judge, result)
    elif record["status"] == "finished" and judge not in metrics and result.judges_returned():
        record.update(status="failed", message=f"train() returned no '{judge}'")
    return record


def _expect_reference(record: dict, judge: str, result: TrialResult) -> None:
    """Refuses a run without a codec that nothing can be compared with."""
    if record["status"] == "diverged" and record["seed"] != result.settings["seeds"][0]:
        return      # a seed less: what others have shown is kept, and the result warns
    if record["status"] != "finished":
        rate = "" if record["lr_factor"] == 1.0 else f" and learning rates times {record['lr_factor']:g}"
        raise UsageError(f"the training has {record['status']} without a codec after {record['steps']} steps with seed {record['seed']}{rate}; "
                         f"nothing can be compared with it")
    for other in result.runs:
        if other["codec"] != BASELINE or other["seed"] == record["seed"] or (other["lr_factor"], other["status"]) != (record["lr_factor"], "finished"):
            continue
        if (judge in other["metrics"]) != (judge in record["metrics"]):
            raise UsageError(f"train() returned {judge!r} with one of the seeds {other['seed']} and {record['seed']} and not with the other; "
                             f"valid is with all or with none")
        if other["losses"] == record["losses"]:
            raise UsageError(f"the losses without a codec are the same with seed {record['seed']} as with seed {other['seed']}, so that several "
                             f"seeds say no more than one; train() must make its weights and the order of its data of trial.seed, or valid is "
                             f"one seed")
    if judge != "loss" and judge not in record["metrics"]:
        raise UsageError(f"train() returned no '{judge}', which judge= names; it returned {sorted(record['metrics']) or 'nothing'}. A train "
                         f"with a loop of its own leaves it when trial.done is true")
    if record["metrics"].get(judge, 0.0) is None and record["seed"] != result.settings["seeds"][0]:
        record["status"] = "diverged"      # with its last update
    elif record["metrics"].get(judge, 0.0) is None:
        raise UsageError(f"the {judge} that train() returned without a codec is not finite; nothing can be compared with it")


def _numbers(returned: Any, judge: str, distributed: bool) -> dict:
    """Returns the result of train() as numbers by name; in a process group the mean over the ranks that returned one."""
    numbers: Any = {}
    if returned is not None:
        values = returned if isinstance(returned, dict) else {judge: returned}
        try:
            numbers = {str(key): float(value) for key, value in values.items()}
        except (TypeError, ValueError, OverflowError):
            numbers = f"train() returned {returned!r:.80}; valid is a number, or a dictionary of numbers by name"
    ranks = of_ranks(numbers) if distributed else [numbers]
    for said in ranks:
        if isinstance(said, str):
            raise UsageError(said)
    return {key: float(np.mean([said[key] for said in ranks if key in said])) for key in sorted(set().union(*ranks))}


def _from_rank_0(make: Callable[[], Any], distributed: bool) -> Any:
    """Returns on every rank the object that `make` returns on rank 0; raises its exception there, too."""
    if not distributed:
        return make()
    made: list = [None, None]
    if dist.get_rank() == 0:
        try:
            made[0] = make()
        except Error as error:
            made[1] = error
    dist.broadcast_object_list(made)
    if made[1] is not None:
        raise made[1]
    return made[0]

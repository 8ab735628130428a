"""Capturing the gradients of a training in PyTorch. Needs torch and h5py, nothing else of the package."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import warnings
from typing import Any, Iterable, NoReturn, Optional, Union

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from . import _readiness
from ._ddp import ClearedGradients, LateGradients, watch_buckets
from ._doubts import Doubts
from ._errors import Error, UnavailableError, UsageError, list_names
from ._facts import BatchWeights, ReduceDtype, number_of
from ._fsdp import expect_all_reduced, is_fsdp2, watch_reduce_scatter
from ._modules import (ForwardEndHook, ForwardHook, TrainedParameters, describe_parameters, expect_no_zero, full_tensor, gradient_of,
                       inner_module, is_a_training_pass, uncompiled)
from ._options import check_options, checked_iterations
from ._places import as_text
from ._ranks import agree, library_of, meet, merge_ranks, rank_path
from ._readiness import CudaClock, IterationTimer, Readiness
from ._step import StepGradients, optimizer_text
from ._writer import BackgroundWriter, GradientWriter, StepRecord, existing, producer

#: Captures that nobody has closed, which the end of the program does.
_OPEN: set = set()


@atexit.register
def _close_at_exit() -> None:
    for capture in list(_OPEN):
        capture._close_alone(complete=getattr(sys, "last_type", None) is None)


class Capture:
    """Writes the gradients of every worker, before they are averaged, to a gradient file.

        with gradtool.Capture(model, "run.h5", iterations=gradtool.windows(total_steps)) as capture:
            for inputs, targets in loader:
                loss = criterion(model(inputs), targets)
                loss.backward()
                capture.step(loss)          # after backward(), before optimizer.step()
                optimizer.step()
                optimizer.zero_grad()

    It works with a plain model in one process; with DistributedDataParallel, whose communication hook shows each rank's
    bucket before it is reduced; with FSDP2 (`fully_shard`), whose reduce-scatter does; and in a process group whose
    ranks average by themselves, after `step`. Under torch.distributed every rank makes a Capture, calls `step` and closes
    it, for the ranks wait for each other when it is made and closed; each writes `run.rank0.h5`, ..., and leaving the
    `with` block merges them into `run.h5`.

    Parameters
    ----------
    model:
        The model that is trained. Parameters that need no gradient, or have no elements, are left out. It is an error
        at a captured step if others than those that needed one when the capture was made are trained.
    path:
        The file to write.
    every, first, last:
        Training iterations `first`, `first + every`, ... up to `last` are captured; `step` counts them from 0.
    iterations:
        In their place: the iterations themselves, some consecutive ones (which codecs with a memory need) of several phases of
        a training, such as `gradtool.windows(1000)` or `[*range(10, 18), *range(500, 508)]`.
    optimizer:
        To note the learning rate, and for `second_moment="adam"`.
    scaler:
        The GradScaler of automatic mixed precision: gradients are stored unscaled, and a step whose gradients
        overflowed is marked in the column `overflow`.
    micro_batches:
        K, the number of backward passes that make a step. Call `micro_batch()` after each of them but the last, and
        divide the loss by K, as is usual.
    micro_batches_as_workers:
        In one process: each micro-batch is a worker of its own, so that one GPU captures what K workers would send.
    second_moment:
        "micro_batches": the sum over micro-batches of the square of (their mean gradient / K); "adam": Adam's estimate
        of the squared averaged gradient, without its bias.
    weight:
        True: the parameters before the update, too.
    quantity, inner_steps:
        "pseudo_gradient" captures the weights' way over `inner_steps` local steps, as DiLoCo exchanges it: `start()`
        where a round begins (the constructor calls it), `step()` where it ends, before the outer exchange.
    averaged:
        True where the gradients are averaged already when `step` sees them; the file says so, because errors between
        averaged workers mean nothing.
    comm_hook:
        (state, hook) of your own DDP communication hook, which is then called after each bucket was seen.
    reduce_dtype:
        The type in which the job reduces all gradients, where it is not that of the parameters and the capture cannot
        see it: of a hook of your own, of DeepSpeed. FSDP2's, and those of PyTorch's bf16_compress_hook and
        fp16_compress_hook, are seen. `bench` compares codecs with that.
    group:
        The process group of the data-parallel ranks; that of DDP, or else the default one, when left out.
    merge:
        "copy": the ranks' files become one when the capture ends, and are removed. "link": they stay, and `path` refers
        to them without copying values. "no": they stay; `gradtool merge` merges them later.
    replace:
        True: files that are there already are replaced.
    name, dataset, seed, batch_size:
        Noted in the file, for those who judge it.

    On iterations that are not captured nothing is copied. On those that are, gradients are copied to the CPU, and a
    thread writes them while training continues; at most two steps are held in memory. A killed process leaves every
    step readable of which `written` had been raised.
    """

    def __init__(self, model: nn.Module, path: Union[str, os.PathLike], *, every: int = 1, first: int = 0,
                 last: Optional[int] = None, iterations: Optional[Iterable[int]] = None,
                 optimizer: Optional[torch.optim.Optimizer] = None, scaler: Any = None, micro_batches: int = 1,
                 micro_batches_as_workers: bool = False, second_moment: Optional[str] = None, weight: bool = False,
                 quantity: str = "gradient", inner_steps: Optional[int] = None, averaged: bool = False,
                 comm_hook: Optional[tuple] = None, reduce_dtype: Optional[torch.dtype] = None, group: Any = None,
                 merge: str = "copy", replace: bool = False, name: Optional[str] = None, dataset: Optional[str] = None,
                 seed: Optional[int] = None, batch_size: Optional[int] = None) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        distributed = dist.is_available() and dist.is_initialized()
        if group is None and isinstance(uncompiled(model), nn.parallel.DistributedDataParallel):
            group = uncompiled(model).process_group
        #: The process group of the ranks; None is the default one.
        self.group = group
        #: This process among them, and how many there are.
        self.rank = dist.get_rank(group) if distributed else 0
        self.ranks = dist.get_world_size(group) if distributed else 1
        self._process = os.getpid()
        described: list = []

        def describe() -> dict:
            """Checks what was given; returns what decides which steps there are, and must be the same on all ranks."""
            as_text(path)
            given["iterations"] = checked_iterations(iterations)
            check_options(**given)
            described.extend(describe_parameters(model, scaled=scaler is not None, weight=weight, second_moment=second_moment is not None))
            if not described[0]:
                raise UsageError("the model has no parameter that needs a gradient")
            trained = set() if optimizer is None else {id(p) for group_of in optimizer.param_groups for p in group_of["params"]}
            if second_moment == "adam" and not any(id(p) in trained for p in described[0]):
                raise UsageError("second_moment='adam' needs the optimizer of this model; the one that was given has none of its parameters")
            named = ["merge", "micro_batches", "micro_batches_as_workers", "second_moment", "quantity", "inner_steps", "averaged"]
            return {name: given[name] for name in named + (["every", "first", "last", "iterations"] if merge != "no" else [])}
        if self.ranks > 1:
            agree(group, describe, f"made the capture to {path}")
        else:
            describe()
        iterations = given["iterations"]
        self._parameters, specs, left_out = described
        if micro_batches_as_workers and (self.ranks > 1 or micro_batches < 2):
            raise UsageError("micro_batches_as_workers is for one process, with micro_batches of 2 or more")

        self._every, self._first, self._last = every, first, last
        self._iterations = iterations
        self._optimizer, self._scaler, self._merge = optimizer, scaler, merge
        self._micro_batches, self._as_workers = micro_batches, micro_batches_as_workers
        self._second_moment, self._delta = second_moment, quantity == "pseudo_gradient"
        #: Training iterations seen so far; the next call of `step` is this one.
        self.iteration = 0
        #: Steps that are in the file.
        self.written = 0
        self.path = as_text(path)
        self._place = os.path.abspath(self.path)  # the training may change the folder that it is in
        self._workers = micro_batches if micro_batches_as_workers else 1

        for sentence in left_out if self.rank == 0 else []:
            warnings.warn(f"{self.path}: {sentence}")
        self._specs, self._fsdp2 = specs, is_fsdp2(model)
        self._model: Any = model  # until the capture ends
        self._trained: Any = TrainedParameters(model, self._parameters, specs, by_name=self._fsdp2)
        self._index = {id(parameter): i for i, parameter in enumerate(self._parameters)}
        self._gradients = StepGradients(self._parameters, specs, micro_batches, micro_batches_as_workers, second_moment == "micro_batches")
        self._micro_seen = 0
        #: What backward passes add between a reduction and `step`; for DDP's hook.
        self.late = LateGradients(self._parameters)
        self._doubts = Doubts(self, may_be_averaged=self.ranks > 1 and not averaged and quantity == "gradient")
        self._cleared = ClearedGradients(self._parameters)
        self._batch_weights = BatchWeights(self._workers)
        self._reduce_dtype = ReduceDtype(reduce_dtype, specs)
        self._began: Optional[float] = None
        self._compute: Optional[float] = None
        self._copying = 0.0
        #: When gradients are ready; for hooks.
        clock = _readiness.clock_of(self._parameters)
        self.readiness = Readiness(self._parameters, clock)
        self._timer = IterationTimer(clock) if isinstance(clock, CudaClock) else None
        self._timed_here = clock is not None and self._timer is None  # by this process's clock
        #: Whether the capture has ended.
        self.closed = False
        self._start_weights: Optional[list] = None
        self._forward_hooks: list = []

        columns = ["loss", "epoch", "learning_rate", "compute_seconds", "batch_weight"] + (["overflow"] if scaler is not None else [])
        attributes = {
            "producer": producer(f"Python, torch {torch.__version__}"),
            "model": name or type(inner_module(model)).__name__, "dataset": dataset, "seed": seed, "batch_size": batch_size,
            "micro_batches": 1 if micro_batches_as_workers else micro_batches,
            "optimizer": None if optimizer is None else optimizer_text(optimizer),
            "command": " ".join([os.path.basename(sys.executable), *sys.argv]),
            "quantity": None if quantity == "gradient" else quantity, "inner_steps": inner_steps,
            "averaged": 1 if averaged else None,
            "reduce_dtype": self._reduce_dtype.given,
        }
        if self.ranks > 1:
            attributes.update(rank=self.rank, ranks=self.ranks, library=library_of(group, self._parameters[0].device.type))
        failure: Optional[Exception] = None
        try:
            if self.ranks > 1 and merge != "no" and os.path.lexists(self.path) and not replace:
                raise existing(self.path)
            self._file = GradientWriter(self._rank_path(self.rank), specs, self._workers, attributes, columns, replace,
                                      readiness=not self._delta)
        except Exception as error:  # pylint: disable=broad-except
            failure = error
        if self.ranks > 1:
            # One rank that cannot write would leave the others waiting for it at the next collective.
            elsewhere = meet(self.group, None if failure is None else str(failure))
            if elsewhere is not None and failure is None:
                self._file.close(complete=False)
                failure = Error(f"another rank cannot write its file: {elsewhere}")
        if failure is not None:
            raise failure
        self._writer = BackgroundWriter(self._file, self._count_written)
        try:
            self._attach(model, comm_hook)
            if self._delta:
                self.start()
        except BaseException:
            self._finish(complete=False)
            raise
        _OPEN.add(self)

    # ---- what the training calls ----

    def micro_batch(self) -> None:
        """To be called after the backward pass of every micro-batch of a step but the last one."""
        if self._micro_batches == 1:
            raise UsageError("micro_batch() was called, but micro_batches is 1")
        self._micro_seen += 1
        if self._micro_seen >= self._micro_batches:
            raise UsageError(f"micro_batch() was called {self._micro_seen} times in a step of {self._micro_batches} "
                             f"micro-batches; it goes after each of them but the last")
        if self._as_workers:
            self.readiness.end(self._micro_seen - 1)
        if self.capturing and (self._as_workers or self._second_moment == "micro_batches"):
            began = self.readiness.mark()
            gradients = self._grads("micro_batch()")
            self._expect_accumulated()
            self._gradients.add_micro_batch(gradients, self._scale(by_hook=True))
            if not self._by_hook:
                self._cleared.watch()
            self.readiness.pause(began)
        self.readiness.next_micro_batch()

    def start(self) -> None:
        """Begins a round of local steps, for pseudo-gradients: remembers the weights, for the next `step` alone."""
        if not self._delta:
            raise UsageError("start() is for quantity='pseudo_gradient'")
        self._start_weights = [full_tensor(p).detach().clone() for p in self._parameters]

    def step(self, loss: Any = None, *, weight: Any = None, epoch: Optional[float] = None, learning_rate: Optional[float] = None) -> bool:
        """Ends an iteration: after backward(), before the optimizer changes weights or anybody averages gradients.

        `weight` is what this rank's batch counts beside those of other ranks, such as the number of its tokens, where the loss is the
        mean over them: the exact result is then the weighted mean. All captured steps have it, or none. With
        `micro_batches_as_workers`, one number for each micro-batch.

        Returns whether the iteration was captured. For pseudo-gradients: after the last local step of a round.
        """
        if self.closed:
            raise UsageError("step() was called after the capture had ended")
        if os.getpid() != self._process:
            raise UsageError("step() was called in a process that was forked from the one that made the capture; capture in that one")
        if self._delta and self._start_weights is None:
            raise UsageError(f"iteration {self.iteration}: step() came without start() since the last step(); call start() where a "
                             f"round of local steps begins, and step() once where it ends")
        captured = self.capturing
        if captured:
            self._capture(loss, epoch, learning_rate, self._batch_weights.checked(self.iteration, weight))
        elif self._timer is not None and not self._by_hook:
            self._timer.end()
        if self._timer is not None:
            self._timer.next(counts=not captured)
        self.iteration += 1
        self._start_weights = None
        self._gradients.clear()
        self._micro_seen, self._began, self._compute, self._copying = 0, None, None, 0.0
        self.readiness.drop()
        self.late.stop()
        self._cleared.stop()
        return captured

    @property
    def capturing(self) -> bool:
        """Whether the iteration that runs now is captured."""
        if self._iterations is not None:
            return self.iteration in self._iterations
        after = self.iteration - self._first
        return after >= 0 and after % self._every == 0 and (self._last is None or self.iteration <= self._last)

    @property
    def watching(self) -> bool:
        """Whether gradients are looked at now; for hooks, which stay on the model after the capture."""
        return not self.closed and self.capturing

    def close(self, complete: bool = True) -> None:
        """Waits for the last step to be written, and merges the files of the ranks. Every rank calls it.

        A capture that is neither closed nor the subject of a `with` block is closed when the program ends, but the files
        of ranks are not merged then, since other ranks may not be there any more.

        With complete=False, which is how a `with` block ends that an exception leaves, files are closed in order and
        marked interrupted, and not merged: other ranks may not be there any more.
        """
        if self.closed:
            return
        if not complete or os.getpid() != self._process:
            self._close_alone(complete)
            return
        if self.ranks == 1 or self._merge == "no":
            self._finish(complete)
            return
        failure = None
        try:
            self._finish(complete)
        except Error as error:
            failure = error
        merge_ranks(self.group, self._place, self.written, self._merge == "copy", failure)

    def _finish(self, complete: bool) -> None:
        self.closed = True
        _OPEN.discard(self)
        if os.getpid() != self._process:  # a fork, whose parent goes on
            self._file.close()
            return
        for hook in self._forward_hooks:
            hook.remove()
        self.readiness.drop()
        self.late.stop()
        self._cleared.stop()
        self._model = self._trained = None  # DDP's hook keeps the capture, and DDP the hook
        try:
            self._writer.finish()
        except BaseException:
            with contextlib.suppress(Error):  # the first error is the one to know
                self._file.close(complete=False)
            raise
        if not self._writer.failed:
            self._reduce_dtype.put(self._file, self.path, speaks=self.rank == 0)
        medians = self.readiness.medians(self._workers)
        if medians is not None and not self._writer.failed:
            self._file.put_readiness(*medians)
        self._file.close(complete and not self._writer.failed)
        if complete and self.written == 0 and self.rank == 0:
            which = f"first={self._first}, every={self._every}, last={self._last}" if self._iterations is None else \
                f"iterations from {min(self._iterations)} to {max(self._iterations)}"
            warnings.warn(f"{self.path} was not written, because no step was captured: step() was called {self.iteration} times, and "
                          f"the capture was made with {which}")

    def _close_alone(self, complete: bool) -> None:
        """Does what close() does, but without the other ranks."""
        self._finish(complete)
        if os.getpid() == self._process and self.written > 0 and self.ranks > 1 and self._merge != "no" and (self.rank == 0 or not complete):
            why = "was not closed before the program ended" if complete else "was interrupted"
            files = " ".join(self._rank_path(rank) for rank in range(self.ranks))
            warnings.warn(f"the capture {why}: {self._rank_path(self.rank)} holds {self.written} steps; merge the ranks' "
                          f"files with: gradtool merge --out {self.path} {files}")

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, kind: Any, *exception: Any) -> None:
        try:
            self.close(complete=kind is None)
        except Error as error:
            if kind is None:
                raise
            warnings.warn(str(error))  # the exception that leaves the block is the one to know

    # ---- how gradients are found ----

    def _attach(self, model: nn.Module, comm_hook: Optional[tuple]) -> None:
        """Finds out how the model is parallel, and hangs itself where each rank's own gradients can be seen."""
        self._by_hook = False
        if self._delta:
            return
        inner = inner_module(model)
        self._forward_hooks = [inner.register_forward_pre_hook(ForwardHook(self._forward_begins)),
                               inner.register_forward_hook(ForwardEndHook(self._forward_ended))]
        model = uncompiled(model)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            watch_buckets(model, self, comm_hook)
            self._by_hook = True
        elif comm_hook is not None:
            raise UsageError("comm_hook= is for a model wrapped in DistributedDataParallel")
        elif self._fsdp2:
            if self._second_moment == "micro_batches":
                raise UsageError("second_moment='micro_batches' is not for FSDP2, which does not show each rank's own gradient of a "
                                 "micro-batch; leave it out, or use DistributedDataParallel")
            self._by_hook = watch_reduce_scatter(model, self)
        elif any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
            raise UnavailableError("FSDP1 does not show gradients before it reduces them; use fully_shard (FSDP2)")

    def _forward_begins(self, *_: Any) -> None:
        if not is_a_training_pass():
            return
        if self.capturing:
            if self._gradients.seen:
                self._cleared.watch()
            self.readiness.forward_begins(watch=not self._by_hook)
            if self._began is None:
                self._began = time.perf_counter()
        elif self._timer is not None:
            self._timer.begin()

    def _forward_ended(self, *_: Any) -> None:
        if self.readiness.running and is_a_training_pass():
            self.readiness.forward_ended()

    def knows(self, parameter: Any) -> bool:
        """Whether the file has a tensor for this parameter; for hooks."""
        return id(parameter) in self._index

    def take(self, parameter: Any, gradient: torch.Tensor) -> None:
        """Keeps one parameter's gradient of this rank, which may be scaled; for hooks."""
        index = self._index.get(id(parameter))
        if index is None:
            return
        if index in self._gradients.seen and self._cleared.forget(index):
            self._doubts.warn_of_cleared()
        elif index in self._gradients.seen:
            raise UsageError(f"iteration {self.iteration}: the gradient of {self._specs[index].name} was reduced twice since the last "
                             f"step(); call step() after each backward pass, or let only the last micro-batch of a step synchronise "
                             f"(DDP's no_sync(), FSDP2's set_requires_gradient_sync(False))")
        self._gradients.keep(index, gradient, self._scale(by_hook=True))

    def note_reduced_in(self, dtype: torch.dtype) -> None:
        """Gradients are reduced in this type; for hooks. What the user said goes first."""
        self._reduce_dtype.note(dtype)

    def mark(self) -> Any:
        """This moment on the device's clock, where iterations that are not captured are timed; for hooks."""
        return None if self._timer is None else self.readiness.mark()

    def gradients_complete(self, mark: Any = None) -> None:
        """Gradients of an iteration that is not captured are complete, at `mark` or now; for hooks."""
        if self._timer is not None and not self.closed and not self.capturing:
            self._timer.end(mark)

    def bucket_ready(self, parameters: Iterable, mark: Any = None) -> Any:
        """The gradients of these parameters were complete at `mark`, or are now; for hooks. Returns this moment, for `leave_out`."""
        mark = self.readiness.mark() if mark is None else mark
        for parameter in parameters:
            if id(parameter) in self._index:
                self.readiness.note(self._index[id(parameter)], mark)
        return mark

    def refuse_sparse(self, parameter: Any) -> NoReturn:
        raise UsageError(f"iteration {self.iteration}: the gradient of {self.name_of(parameter)} is sparse; a gradient file holds dense "
                         f"ones (sparse=False)")

    def name_of(self, parameter: Any) -> str:
        index = self._index.get(id(parameter))
        return "a parameter that is not captured" if index is None else self._specs[index].name

    def leave_out(self, seconds: float, since: Any) -> None:
        """Time that the capture took itself while the backward pass ran, `since` what bucket_ready() returned; for hooks."""
        self._copying += seconds
        self.readiness.pause(since)

    def backward_ended(self) -> None:
        """Notes how long forward and backward took, without what the capture itself took; for hooks."""
        if self._began is not None and self._timed_here:
            self._compute = time.perf_counter() - self._began - self._copying

    def _scale(self, by_hook: bool) -> float:
        """By what gradients are multiplied where they are seen."""
        if self._scaler is None or not self._scaler.is_enabled():
            return 1.0
        if not by_hook:
            state = self._scaler._per_optimizer_states[id(self._optimizer)]  # pylint: disable=protected-access
            if getattr(state["stage"], "name", "") != "READY":  # unscale_() was called
                return 1.0
        return float(self._scaler.get_scale())

    # ---- a captured step ----

    def _capture(self, loss: Any, epoch: Optional[float], learning_rate: Optional[float], weight: Optional[np.ndarray]) -> None:
        if self._micro_seen != self._micro_batches - 1:
            raise UsageError(f"iteration {self.iteration}: step() came after {self._micro_seen} calls of micro_batch(); a "
                             f"step of {self._micro_batches} micro-batches has {self._micro_batches - 1}")
        self._trained.expect_unchanged(self.iteration)
        if self._delta:
            gradients = self._gradients.pseudo_gradients(self._start_weights)
        elif self._as_workers:
            last = self._grads()
            self._expect_accumulated()
            self._gradients.add_micro_batch(last, self._scale(by_hook=True))
            self.backward_ended()
            self.readiness.end(self._workers - 1)
            gradients = self._gradients.gradients()
        else:
            if self._by_hook:
                self._expect_all_seen()
            else:
                if self._fsdp2:
                    expect_all_reduced(self._model, self.iteration)
                scale = self._scale(by_hook=False)
                for index, gradient in self._grads().items():
                    self._gradients.keep(index, gradient, scale)
                self._expect_accumulated()
                self.backward_ended()
            self.readiness.end(0)  # the gradients are on the CPU, so that a GPU has nothing more to do for them
            if self._second_moment == "micro_batches":
                self._gradients.add_last_micro_batch()
            gradients = self._gradients.gradients()
            if not self._by_hook:
                self._doubts.warn_of_averages(gradients)
        self._warn_of_zeros(gradients)
        if isinstance(loss, torch.Tensor):
            loss = loss.detach()
        if learning_rate is None and self._optimizer is not None:
            learning_rate = self._optimizer.param_groups[0]["lr"]
        moments = None
        if self._second_moment == "micro_batches":
            moments = self._gradients.squares()
        elif self._second_moment == "adam":
            moments = self._gradients.adam_moments(self._optimizer)
        if self._timer is not None:
            self._compute = self._timer.median()
        overflow = None
        if self._scaler is not None:
            bad = any(not np.isfinite(values).all() for values in gradients)
            overflow = np.full(self._workers, bad, "u1")
        weights = self._gradients.weights() if self._specs[0].weight else None
        self._writer.put(StepRecord(
            self.iteration, gradients, moments, weights,
            epoch=number_of(self.iteration, "epoch", epoch), learning_rate=number_of(self.iteration, "learning_rate", learning_rate),
            loss=np.full(self._workers, number_of(self.iteration, "loss", loss), "f4"),
            compute_seconds=np.full(self._workers, float("nan") if self._compute is None else
                                    self._compute / self._workers),
            overflow=overflow, batch_weight=weight))

    def _expect_accumulated(self) -> None:
        """Refuses gradients that were cleared since micro_batch(): what a micro-batch adds is the difference to what was there."""
        if self._cleared.watching and any(self._cleared.forget(index) for index in self._gradients.accumulated()):
            raise UsageError(f"iteration {self.iteration}: gradients were cleared between the micro-batches of a step, or before step(); let "
                             f"them accumulate, and call zero_grad() after step()")

    def _expect_all_seen(self) -> None:
        """Refuses an iteration in which hooks have not seen all that the optimizer will take."""
        if not self._gradients.seen:
            raise UsageError(f"iteration {self.iteration}: no gradient was reduced since the last step(); call step() after the backward "
                             f"pass that synchronises, and give DDP find_unused_parameters=True where that does not use every parameter")
        if self._fsdp2:
            expect_all_reduced(self._model, self.iteration)
            # The loss of another model may have reached a module that the last backward pass did not use.
            for index in [index for index in self._gradients.seen if self._cleared.watching and self._parameters[index].grad is None]:
                del self._gradients.seen[index]
                self._doubts.warn_of_cleared()
            return
        self.late.expect_none(self.iteration)
        unseen = [spec.name for index, spec in enumerate(self._specs) if index not in self._gradients.seen]
        if unseen:
            raise UsageError(f"iteration {self.iteration}: DistributedDataParallel has not reduced {list_names(unseen)}; wrap the model when "
                             f"all that is to be trained needs gradients, with find_unused_parameters=True where some is not used in each step")

    def _warn_of_zeros(self, gradients: list) -> None:
        if self._delta:
            cause = "did the optimizer change the weights between start() and step()?"
        elif self._by_hook or self._as_workers:
            cause = "does its loss depend on the parameters?"
        else:
            cause = "was zero_grad(set_to_none=False) called before step()? step() goes between backward() and zero_grad()"
        self._doubts.warn_of_zeros(gradients, self._workers, self._as_workers, cause)

    def _grads(self, caller: str = "step()") -> dict:
        grads = {i: full_tensor(grad) for i, p in enumerate(self._parameters) if (grad := gradient_of(p)) is not None}
        if not grads:
            expect_no_zero(self._parameters)
            raise UsageError(f"iteration {self.iteration}: no parameter has a gradient; call {caller} after backward() and "
                             f"before zero_grad()")
        for index, grad in grads.items():
            if grad.is_sparse:
                self.refuse_sparse(self._parameters[index])
        return grads

    # ---- files ----

    def _count_written(self, _: StepRecord) -> None:
        self.written += 1

    def _rank_path(self, rank: int) -> str:
        return self.path if self.ranks == 1 else rank_path(self.path, rank)

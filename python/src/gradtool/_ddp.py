"""Seeing the gradients of DistributedDataParallel, bucket by bucket, before its all-reduce."""

from __future__ import annotations

import time
import weakref
from typing import Any, Callable, Optional

import torch
from torch import distributed as dist
from torch import nn

from ._errors import UsageError
from ._modules import accumulators, is_dense, uncompiled


class _Watch:
    """The state of a DDP model's communication hook: the capture that runs, and the (state, hook) that reduces.

    A model that is copied or pickled takes a watch along that shows its buckets to nobody.
    """

    def __init__(self, model: Optional[nn.Module] = None, capture: Any = None, hook: Optional[tuple] = None) -> None:
        self.model: Callable = (lambda: None) if model is None else weakref.ref(model)  # which owns this watch
        self.capture = capture
        self.hook = hook or (None, _all_reduce)

    def __reduce__(self) -> tuple:
        return _Watch, ()


#: By DDP model, for as long as it lives.
_WATCHES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def watch_buckets(model: nn.Module, capture: Any, comm_hook: Optional[tuple]) -> None:
    """Registers the communication hook, or takes over that of an earlier capture, since DDP takes one hook for ever."""
    watch = _WATCHES.get(model)
    if watch is not None:
        if watch.capture is not None and not watch.capture.closed:
            raise UsageError(f"the model is being captured already, to {watch.capture.path}; close that capture first")
        watch.capture = capture
        watch.hook = comm_hook or watch.hook
        return
    watch = _Watch(model, capture, comm_hook or (model.process_group, _all_reduce))
    # DDP looks at the types themselves, not at their names.
    _see_bucket.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    try:
        model.register_comm_hook(watch, _see_bucket)
    except RuntimeError as error:
        raise UsageError("the model has a communication hook already; give it to Capture as "
                         "comm_hook=(state, hook) instead of registering it") from error
    _WATCHES[model] = watch


def take_over(model: nn.Module, state: Any, hook: Any) -> bool:
    """Lets the communication hook of a model that was or is being captured call (state, hook) from now on.

    DDP takes one hook for ever, and the first capture of a model has registered it. Returns False where there was none, so that
    the caller can register its own. A capture that is open still sees each bucket before `hook` does.
    """
    watch = _WATCHES.get(uncompiled(model))
    if watch is None:
        return False
    watch.hook = (state, hook)
    return True


def _see_bucket(watch: _Watch, bucket: Any) -> Any:
    capture = watch.capture
    if capture is not None and not capture.closed:
        # Ranks that have joined count no iterations, so that all ranks would not stop at a captured one. They stop at the first.
        # One that ends all ranks with the first is none of this.
        join = getattr(watch.model(), "_join_config", None)
        if join is not None and join.enable and not join.throw_on_early_termination:
            raise UsageError("the model is trained with join(), under which ranks without inputs take no steps and have no gradients to "
                             "capture; give all ranks equally many batches (drop_last=True), or close the capture before join()")
        if capture.watching:
            _show(capture, bucket, watch.hook[1])
        elif bucket.is_last():
            capture.gradients_complete()
    state, hook = watch.hook
    return hook(state, bucket)


def _all_reduce(group: Any, bucket: Any) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    return default_hooks.allreduce_hook(group, bucket)


def _compressed_to(hook: Any) -> Optional[torch.dtype]:
    """The type to which a hook of PyTorch casts buckets for their all-reduce; None for any other hook."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    casts = {"fp16_compress_hook": torch.float16, "bf16_compress_hook": torch.bfloat16}
    return next((dtype for name, dtype in casts.items() if hook is getattr(default_hooks, name, ())), None)


def _show(capture: Any, bucket: Any, hook: Any) -> None:
    begin = time.perf_counter()
    cast = _compressed_to(hook)
    if cast is not None:
        capture.note_reduced_in(cast)
    parameters = bucket.parameters()
    ready = capture.bucket_ready(parameters)
    if bucket.buffer().is_sparse:
        capture.refuse_sparse(parameters[0])
    for parameter, gradient in zip(parameters, bucket.gradients()):
        capture.take(parameter, _in_memory_order_of(parameter, gradient))
    capture.leave_out(time.perf_counter() - begin, ready)
    if bucket.is_last():
        capture.backward_ended()
        capture.late.watch()


class LateGradients:
    """Whether a backward pass adds to gradients after they were reduced, as one under no_sync() does."""

    def __init__(self, parameters: list) -> None:
        self._parameters = parameters
        self._hooks: list = []
        self._any = False

    def watch(self) -> None:
        """To be called within the backward pass that reduces: from its end to `stop`."""
        torch.autograd.Variable._execution_engine.queue_callback(self._hook)  # pylint: disable=protected-access

    def _hook(self) -> None:
        self.stop()  # what an earlier reduction left to watch was cleared since, or the capture has refused this one
        for accumulator in accumulators([parameter for parameter in self._parameters if parameter.requires_grad]):
            # A hook of the parameter itself would be called for torch.autograd.grad as well.
            self._hooks.append((accumulator, accumulator.register_hook(self._note)))

    def _note(self, *_: Any) -> None:
        self._any = True

    def expect_none(self, iteration: int) -> None:
        if self._any:
            raise UsageError(f"iteration {iteration}: a backward pass under no_sync() came after the one that synchronises, and its "
                             f"gradients were not reduced; let the last backward pass before step() synchronise, and only that")

    def stop(self) -> None:
        for _, hook in self._hooks:
            hook.remove()
        self._hooks, self._any = [], False


class ClearedGradients:
    """Which gradients were cleared after they were reduced, as those of a GAN's discriminator that its generator's loss has reached."""

    def __init__(self, parameters: list) -> None:
        self._parameters = parameters
        self._hooks: list = []
        self._cleared: set = set()

    @property
    def watching(self) -> bool:
        """Whether a forward pass has begun after something was reduced, since the last step."""
        return bool(self._hooks)

    def watch(self) -> None:
        """To be called when something was reduced and a forward pass begins: from the next backward pass to `stop`."""
        if not self._hooks:
            self._hooks = [parameter.register_hook(lambda _, index=index: self._look(index))
                           for index, parameter in enumerate(self._parameters) if parameter.requires_grad]

    def _look(self, index: int) -> None:
        """Called before a backward pass adds to the gradient."""
        if self._is_clear(index):
            self._cleared.add(index)

    def _is_clear(self, index: int) -> bool:
        gradient = self._parameters[index].grad
        return gradient is None or not bool(getattr(gradient, "_local_tensor", gradient).any())

    def forget(self, index: int) -> bool:
        """Whether the gradient was cleared before a backward pass, or is clear because the backward pass does not use the parameter."""
        cleared = index in self._cleared or self._is_clear(index)
        self._cleared.discard(index)
        return cleared

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._cleared = [], set()


def _in_memory_order_of(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A bucket's gradient with the axes where they are.

    DDP lays a gradient into its bucket in the order in which the parameter lies in memory, where that has no gaps (channels_last),
    but the bucket shows it as though it were in the order of its axes.
    """
    if parameter.is_contiguous() or not is_dense(parameter):
        return gradient
    return gradient.as_strided(parameter.shape, parameter.stride(), gradient.storage_offset())

"""Seeing the gradients of DistributedDataParallel, bucket by bucket, before its all-reduce."""

from __future__ import annotations

import time
import weakref
from typing import Any, Optional

import torch
from torch import distributed as dist
from torch import nn

from ._errors import UsageError
from ._modules import uncompiled


class _Watch:
    """What the communication hook of a DDP model does: shows buckets to the capture that runs, then calls (state, hook)."""

    def __init__(self, capture: Any, hook: tuple) -> None:
        self.capture, self.hook = capture, hook


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
    if comm_hook is None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        comm_hook = (capture.group, default_hooks.allreduce_hook)
    watch = _Watch(capture, comm_hook)

    def see_bucket(_: Any, bucket: Any) -> Any:
        if watch.capture is not None and watch.capture.watching:
            _show(watch.capture, bucket)
        state, hook = watch.hook
        return hook(state, bucket)
    # DDP looks at the types themselves, not at their names.
    see_bucket.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    try:
        model.register_comm_hook(None, see_bucket)
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


def _show(capture: Any, bucket: Any) -> None:
    begin = time.perf_counter()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
        capture.take(parameter, gradient)
    capture.leave_out(time.perf_counter() - begin)
    if bucket.is_last():
        capture.backward_ended()

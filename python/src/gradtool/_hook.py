"""A communication hook for DistributedDataParallel that averages gradients through gradtool's codecs."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import torch
from torch import distributed as dist
from torch import nn

from ._averaging import AveragingHook, Unit, ranks_of
from ._ddp import take_over
from ._errors import UsageError
from ._modules import inner_module, uncompiled


class DdpHook(AveragingHook):
    """The hook that `ddp_hook` returns: register it with `hook.register(model)`, or `model.register_comm_hook(None, hook)`."""

    def __init__(self, spec: str, **options: Any) -> None:
        super().__init__(spec, **options)
        self.__qualname__ = self.__name__ = "gradtool_" + self._codec["name"]  # DDP notes the name of its hook
        self._loaded = False  # whether what is kept was
        self._regrouping = False  # until the first iteration after load_state_dict has ended
        self._waiting: list = []  # (future, buffer, parameters) of buckets whose averages are not there yet
        self._executor = ThreadPoolExecutor(1, "gradtool hook")
        self._payload_so_far = 0

    def close(self) -> None:
        """Ends the hook's thread and its process group. On every rank, after the last backward pass with the model."""
        self._executor.shutdown()
        super().close()

    def register(self, model: nn.parallel.DistributedDataParallel) -> "DdpHook":
        """Registers the hook, and learns the tensors' kinds and names from the model, which a few codecs look at."""
        ddp = uncompiled(model)
        if not isinstance(ddp, nn.parallel.DistributedDataParallel):
            what = f"the class {model.__name__}" if isinstance(model, type) else f"of the type {type(model).__name__}"
            raise UsageError(f"the model is {what}; valid is what DistributedDataParallel returned")
        if self._names:
            raise UsageError("the hook is registered with a model already; make another one for this model")
        if ranks_of(ddp.process_group) != self._peers.ranks:
            raise UsageError(f"the model averages over the ranks {ranks_of(ddp.process_group)} and the hook over "
                             f"{self._peers.ranks}; give ddp_hook the model's process group as group=")
        parameters = [(name, p) for name, p in inner_module(ddp).named_parameters() if p.requires_grad]
        names = self._describe(dict(inner_module(ddp).named_modules()), parameters)
        try:
            if not take_over(ddp, None, self):
                ddp.register_comm_hook(None, self)
        except RuntimeError as error:
            raise UsageError("the model has a communication hook already, and DistributedDataParallel takes one for ever; "
                             "wrap the module anew") from error
        self._names, self._parameters = names, dict(parameters)
        return self

    def load_state_dict(self, state: dict) -> None:
        """Goes on where `state_dict` was called, with the same bits. Every rank calls it, with what it has saved itself.

        DDP begins with other buckets than those that it had when the state was saved: the first iteration afterwards
        waits for all of them and averages the saved ones instead.
        """
        super().load_state_dict(state)

    def _in_turn(self, function: Callable, *arguments: Any) -> Any:
        return self._executor.submit(function, *arguments).result()

    def _restore(self, state: dict) -> dict:
        self._units = {bucket["number"]: Unit([self._parameters[name] for name in bucket["parameters"]]) for bucket in state["buckets"]}
        self._loaded, self._regrouping = True, bool(self._units)
        return super()._restore(state)

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Averages a bucket on a thread of the hook's own, bucket after bucket, while the backward pass goes on."""
        future: torch.futures.Future = torch.futures.Future(
            devices=[bucket.buffer().device] if bucket.buffer().is_cuda else None)
        buffer, parameters = bucket.buffer(), bucket.parameters()
        number, last = bucket.index(), bucket.is_last()
        ready = torch.cuda.current_stream(buffer.device).record_event() if buffer.is_cuda else None
        self._executor.submit(self._work, future, buffer, parameters, number, last, ready)
        return future

    def _work(self, future: Any, buffer: torch.Tensor, parameters: list, number: int, last: bool, ready: Any) -> None:
        self._waiting.append((future, buffer, parameters))
        try:
            if ready is not None:
                torch.cuda.current_stream(buffer.device).wait_event(ready)
            if not self._regrouping:
                self._reduce(buffer, parameters, number)
            elif last:
                self._reduce_as_saved()
            if last:
                # Buckets of an earlier cut that had more of them.
                for stale in [] if self._regrouping else [n for n in self._units if n > number]:
                    del self._units[stale]
                self._regrouping = False
                self.iteration += 1
                self.payload_bytes, self._payload_so_far = self._payload_so_far, 0
            if not self._regrouping:
                for done, averaged, _ in self._waiting:
                    done.set_result(averaged)
                self._waiting.clear()
        except BaseException as error:  # pylint: disable=broad-except
            for failed, _, _ in self._waiting:
                failed.set_exception(error)
            self._waiting.clear()

    def _reduce_as_saved(self) -> None:
        """Averages all gradients of an iteration in the buckets that were loaded instead of those that DDP has cut."""
        pieces: dict = {}
        for _, buffer, parameters in self._waiting:
            pieces.update(zip(map(id, parameters), buffer.split([p.numel() for p in parameters])))
        if set(pieces) != {id(p) for unit in self._units.values() for p in unit.parameters}:
            raise UsageError("the state that was loaded is not of the parameters that the model trains; valid is the state "
                             "of the same model")
        for number, unit in sorted(self._units.items()):
            own = [pieces[id(p)] for p in unit.parameters]
            values = torch.cat(own)
            self._reduce(values, unit.parameters, number)
            for piece, averaged in zip(own, values.split([p.numel() for p in unit.parameters])):
                piece.copy_(averaged)

    def _reduce(self, buffer: torch.Tensor, parameters: list, number: int) -> None:
        if buffer.layout != torch.strided or buffer.is_complex():
            names = ", ".join(self._names[id(p)][0] if id(p) in self._names else str(tuple(p.shape)) for p in parameters)
            raise UsageError(f"the gradient of {names} is " + (
                f"of the type {buffer.dtype}; valid are real numbers" if buffer.layout == torch.strided else
                "sparse, which no codec takes; make its nn.Embedding with sparse=False"))
        # DDP cuts its buckets anew after the first iteration: what was kept for the old ones is dropped with them.
        unit = self._units.get(number)
        if unit is None or not unit.holds(parameters):
            if unit is not None and self._loaded:
                warnings.warn(f"DistributedDataParallel cuts bucket {number} otherwise than when the state was saved, and what was "
                              f"kept for it is dropped; give it the same bucket_cap_mb, and save after two iterations or more")
            unit = self._units[number] = Unit(parameters)
        self._payload_so_far += self._average(buffer, unit, number, self.iteration)


def ddp_hook(spec: str, **options: Any) -> DdpHook:
    """A communication hook that averages DDP's buckets through a codec: what `gradtool bench` replays, in a training.

        model = DistributedDataParallel(model)
        hook = gradtool.ddp_hook("powersgd:rank=4").register(model)

    Parameters
    ----------
    spec:
        A codec as on the command line. Every codec works but those that need second moments.
    scheme:
        "auto", "sum", "gather", "hop" or "alltoall": as bench's --reduce.
    all_reduce:
        How payloads that add are added: "ring"; "doubling", ceil(log2 p) messages of p ranks instead of 2(p-1); or "auto",
        doubling up to 64 KiB and the ring above, as bench's --all-reduce.
    seed:
        Of all random draws.
    threads:
        Threads of this rank's encoding and decoding; torch's number when left out.
    start_iteration:
        Iterations before this one are averaged uncompressed.
    group:
        The process group of DDP, if it is not the default one.
    scaler:
        The GradScaler of mixed precision, without which gradients and so residuals are in scaled units: after the scale
        has changed, old residuals would count too much or too little by that factor until they have been sent.
    gate_bytes:
        Buckets of fewer bytes are averaged uncompressed: bench's `gate_bytes`, below which compressing them takes longer. A `gate=` of the codec counts where it is larger.

    It works with gloo and with NCCL. Averages are float32; a bucket of another type is converted there and back. Sparse
    and complex gradients are refused.
    Residuals and factors belong to a bucket, and begin anew when DDP cuts its buckets anew after the first iteration.
    A hook does not see the learning rate: to codecs with schedules it looks constant. `hook.state_dict()` saves what is kept.

    A bucket in which any rank has an infinite value or NaN, as a GradScaler provokes them, is averaged uncompressed by
    all ranks and leaves residuals and factors as they are; the scaler then skips the step. The ranks agree on this by an
    all-reduce of one float for each bucket.

    Every rank makes its hook at the same point of the program and with the same arguments, because that makes a process
    group; with `group`, so do the ranks that are not in it, with a group of theirs.
    """
    return DdpHook(spec, **options)

"""A communication hook for DistributedDataParallel that averages gradients through gradtool's codecs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import torch
from torch import distributed as dist

from . import _core
from ._modules import describe_tensor, inner_module
from ._errors import UnavailableError, UsageError


class DdpHook:
    """What `ddp_hook` returns: register it with `hook.register(model)`, or `model.register_comm_hook(None, hook)`."""

    def __init__(self, spec: str, *, scheme: str = "auto", seed: int = 1, threads: Optional[int] = None,
                 group: Any = None, start_iteration: int = 0, scaler: Any = None) -> None:
        if not dist.is_initialized():
            raise UsageError("there is no process group; call torch.distributed.init_process_group first")
        parsed = _core.parse_codec(spec)
        if parsed["needs_second_moment"]:
            raise UnavailableError(f"codec {parsed['name']} needs the second moments of micro-batches, which a "
                                   f"communication hook does not have; replay it with gradtool.bench")
        self.spec = f"{parsed['name']}:{parsed['params']}" if parsed["params"] else parsed["name"]
        self.__qualname__ = self.__name__ = "gradtool_" + parsed["name"]  # DDP notes the name of its hook
        self._scheme, self._seed, self._start = scheme, seed, start_iteration
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise UsageError(f"scaler is of the type {type(scaler).__name__}; valid is the GradScaler of the training")
        self._scaler = scaler
        # A group of its own keeps the codec's messages apart from those of the training, which run at the same time.
        ranks = dist.get_process_group_ranks(group) if hasattr(dist, "get_process_group_ranks") and group else None
        if group is not None and ranks is None:
            raise UnavailableError("this version of torch cannot list the ranks of a group; leave group out")
        self._group = dist.new_group(ranks)
        self._rank, self._size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._peers = _Peers(self._group, ranks if ranks is not None else list(range(self._size)))
        self._threads = torch.get_num_threads() if threads is None else threads
        self._names: dict = {}
        self._units: dict = {}
        self._numbers: dict = {}
        self._ranks: dict = {}
        self._executor = ThreadPoolExecutor(1, "gradtool hook")
        self._lock = threading.Lock()
        #: Training iterations that the hook has averaged.
        self.iteration = 0
        #: Bytes that this rank's encoders produced in the last iteration.
        self.payload_bytes = 0
        self._payload_so_far = 0

    @property
    def bytes_sent(self) -> int:
        """Bytes that the codec made this rank send since the hook was made, counted as bench counts `wire_bytes`.

        Buckets that are averaged uncompressed and the agreement of the ranks about each bucket are not counted.
        """
        return sum(ranks.bytes_sent for ranks in self._ranks.values())

    def register(self, model: torch.nn.parallel.DistributedDataParallel) -> "DdpHook":
        """Registers the hook, and learns the tensors' kinds and names from the model, which a few codecs look at."""
        modules = dict(inner_module(model).named_modules())
        parameters = [(name, p) for name, p in inner_module(model).named_parameters() if p.requires_grad]
        elements, before = sum(p.numel() for _, p in parameters), 0
        for name, parameter in parameters:
            owner = name.rpartition(".")[0]
            kind, layout = describe_tensor(modules[owner], name, tuple(parameter.shape))
            self._names[id(parameter)] = (name, kind, layout, before / elements)
            before += parameter.numel()
        model.register_comm_hook(None, self)
        return self

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
        try:
            if ready is not None:
                torch.cuda.current_stream(buffer.device).wait_event(ready)
            self._reduce(buffer, parameters, number)
            if last:
                self.iteration += 1
                self.payload_bytes, self._payload_so_far = self._payload_so_far, 0
            future.set_result(buffer)
        except BaseException as error:  # pylint: disable=broad-except
            future.set_exception(error)

    def _reduce(self, buffer: torch.Tensor, parameters: list, number: int) -> None:
        values = buffer if buffer.dtype == torch.float32 else buffer.to(torch.float32)
        if self.iteration < self._start or not self._finite_everywhere(values):
            dist.all_reduce(buffer, group=self._group)
            buffer.div_(self._size)
            return
        # DDP cuts its buckets anew after the first iteration: what was kept for the old ones is dropped with them.
        key = (number, tuple(id(parameter) for parameter in parameters))
        unit = self._units.get(number)
        if unit is None or unit[0] != key:
            unit = self._units[number] = (key, self._make(parameters, values), self._weights(parameters, values))
        _, reducer, weights = unit
        scale = float(self._scaler.get_scale()) if self._scaler is not None and self._scaler.is_enabled() else 1.0
        if scale != 1.0:
            values.div_(scale)
        if weights is not None:
            torch.cat([p.detach().reshape(-1).float() for p in parameters], out=weights)
        reducer.reduce(values, weights, None, seed=self._seed, step=self.iteration, tensor=number,
                       iteration=self.iteration, learning_rate_ratio=1.0, stream=_stream(values))
        self._payload_so_far += reducer.payload_bytes
        if scale != 1.0:
            values.mul_(scale)
        if values is not buffer:
            buffer.copy_(values)

    def _finite_everywhere(self, values: torch.Tensor) -> bool:
        """Whether no rank has an infinite value or NaN in the bucket. One of them would stay in residuals for ever.

        It reads the bucket once and copies nothing: the smallest and the largest value are NaN where any value is.
        """
        overflow = torch.stack(torch.aminmax(values)).isfinite().logical_not().any().float().reshape(1)
        dist.all_reduce(overflow, dist.ReduceOp.MAX, group=self._group)
        return not overflow.item()

    def _weights(self, parameters: list, values: torch.Tensor) -> Optional[torch.Tensor]:
        return torch.empty_like(values) if _core.parse_codec(self.spec)["needs_weight"] else None

    def _make(self, parameters: list, values: torch.Tensor) -> Any:
        tensors = []
        for position, parameter in enumerate(parameters):
            shape = tuple(parameter.shape) or (1,)
            name, kind, layout, depth = self._names.get(id(parameter), (f"tensor{position}", *_guess(shape), 0.0))
            tensors.append((name, list(shape), kind, layout, depth))
        device = str(values.device)
        if device not in self._ranks:
            if values.is_cuda and not _core.has_cuda:
                raise UnavailableError("this build of gradtool has no CUDA, and the gradients are on a GPU; build the "
                                       "package where nvcc is")
            kind = _core.CudaRanks if values.is_cuda else _core.HostRanks
            self._ranks[device] = kind(self._rank, self._size, self._threads, self._peers.exchange,
                                       self._peers.all_reduce)
        make = _core.CudaReducer if values.is_cuda else _core.HostReducer
        return make(self._ranks[device], self.spec, tensors, self._scheme, _stream(values))


class _Peers:
    """What the reducers' collectives are made of. The arrays that they lend are valid for the call alone."""

    def __init__(self, group: Any, ranks: list) -> None:
        self._group, self._ranks = group, ranks

    def exchange(self, to: int, out: Any, from_: int, into: Any) -> None:
        """Sends `out` to rank `to` while receiving into `into` from rank `from_`; None is nothing."""
        operations = []
        if out is not None:
            operations.append(dist.P2POp(dist.isend, torch.as_tensor(out), self._ranks[to], self._group))
        if into is not None:
            operations.append(dist.P2POp(dist.irecv, torch.as_tensor(into), self._ranks[from_], self._group))
        for request in dist.batch_isend_irecv(operations) if operations else []:
            request.wait()

    def all_reduce(self, values: Any) -> None:
        """values := their sum over ranks, by the library's own all-reduce; float32, lent as bytes."""
        dist.all_reduce(torch.as_tensor(values).view(torch.float32), group=self._group)


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

    It works with gloo and with NCCL. Averages are float32; a bucket of another type is converted there and back.
    Residuals and factors belong to a bucket, and begin anew when DDP cuts its buckets anew after the first iteration.
    A hook does not see the learning rate: to codecs with schedules it looks constant.

    A bucket in which any rank has an infinite value or NaN, as a GradScaler provokes them, is averaged uncompressed by
    all ranks and leaves residuals and factors as they are; the scaler then skips the step. The ranks agree on this by an
    all-reduce of one float for each bucket.

    Every rank makes its hook at the same point of the program, because that makes a process group.
    """
    return DdpHook(spec, **options)


def _stream(values: torch.Tensor) -> int:
    return torch.cuda.current_stream(values.device).cuda_stream if values.is_cuda else 0


def _guess(shape: tuple) -> tuple[str, str]:
    return ("conv", "OIHW") if len(shape) == 4 else ("linear", "OI") if len(shape) == 2 else ("other", "")

"""Runs a function in several processes that form a process group of gloo."""

import os
import tempfile
import traceback

import torch
from torch import distributed as dist
from torch import multiprocessing

# Processes are forked from one that has imported PyTorch and does nothing else; each would take a second to import it.
_FORKSERVER = multiprocessing.get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["torch", "torch.distributed", "gradtool"])


def _enter(rank, size, rendezvous, results, function, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method="file://" + rendezvous)
    try:
        results[rank] = function(rank, size, *arguments)
    except BaseException:
        results[rank] = traceback.format_exc()
        raise
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(size, function, *arguments):
    """Calls function(rank, size, *arguments) in `size` processes; returns what each returned, which must pickle."""
    with tempfile.TemporaryDirectory() as folder:
        results = _FORKSERVER.Manager().dict()
        multiprocessing.start_processes(_enter, (size, os.path.join(folder, "rendezvous"), results, function, arguments), size,
                                        start_method="forkserver")
        return [results[rank] for rank in range(size)]

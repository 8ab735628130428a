"""Runs a function in several processes that form a process group of gloo."""

import os
import pickle
import tempfile

import torch
from torch import distributed as dist
from torch import multiprocessing

# Processes are forked from one that has imported what all tests import and does nothing else; each would take a second for it.
multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "torch.distributed", "gradtool", "h5py", "pytest"])


def _enter(rank, size, folder, function, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method="file://" + os.path.join(folder, "rendezvous"))
    with open(os.path.join(folder, f"{rank}.pickle"), "wb") as file:
        pickle.dump(function(rank, size, *arguments), file)
    dist.barrier()
    dist.destroy_process_group()


def _result(folder, rank):
    with open(os.path.join(folder, f"{rank}.pickle"), "rb") as file:
        return pickle.load(file)


def run_ranks(size, function, *arguments):
    """Calls function(rank, size, *arguments) in `size` processes; returns what each returned, which must pickle."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(_enter, (size, folder, function, arguments), size, start_method="forkserver")
        return [_result(folder, rank) for rank in range(size)]

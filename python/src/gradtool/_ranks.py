"""Lets ranks agree: that all are there, what each was told, how each fared, and the merging of the files of a capture."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any, Callable, Optional

from torch import distributed as dist

from ._errors import Error, UsageError
from ._merge import merge as merge_files

#: How many seconds a rank waits for the others before it says so.
PATIENCE = 60.0


def gather(group: Any, value: Any, occasion: Optional[str] = None) -> list:
    """Returns each rank's value, once all are here. A rank that waits long warns that others have not done what `occasion` says."""
    if occasion is not None:
        _warn_of_absent_ranks(group, occasion)
    values: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def library_of(group: Any, device: str) -> Optional[str]:
    """The library that carries a group's collectives of tensors on `device`: nccl, gloo or mpi; None where it is none of these.

    PyTorch says "gloo" of a group with one backend, and "cpu:gloo,cuda:nccl" of one that has one for each kind of device.
    """
    said = str(dist.get_backend(group)).lower()
    name = dict(part.split(":", 1) for part in said.split(",") if ":" in part).get(device, said)
    return name if name in ("nccl", "gloo", "mpi") else None


def meet(group: Any, word: Optional[str], occasion: Optional[str] = None) -> Optional[str]:
    """Waits for all ranks; returns what the first of them said that is not None."""
    return next((w for w in gather(group, word, occasion) if w is not None), None)


def agree(group: Any, act: Callable[[], dict], occasion: Optional[str] = None) -> None:
    """Calls `act` on every rank; ends with the same sentence on all where one fails, or where what they return differs.

    A rank that failed alone, or did something else, would leave the others waiting for its messages.
    """
    failed, returned = None, {}
    try:
        returned = act()
    except Exception as error:  # pylint: disable=broad-except
        failed = error
    answers = gather(group, (None if failed is None else str(failed), returned), occasion)
    if failed is not None:
        raise failed
    for rank, (sentence, _) in enumerate(answers):
        if sentence is not None:
            raise UsageError(f"rank {rank} refuses: {sentence}")
    for rank, (_, theirs) in enumerate(answers):
        for what, first in answers[0][1].items():
            if theirs[what] != first:
                raise UsageError(f"{what} is {first!s:.80} on rank 0 and {theirs[what]!s:.80} on rank {rank}; every rank needs the same")


def _warn_of_absent_ranks(group: Any, occasion: str) -> None:
    store = _store(group)
    if store is None:
        return
    ranks = dist.get_world_size(group)
    meeting = f"gradtool/meeting {store.add(f'gradtool/meetings of rank {dist.get_rank(group)}', 1)}"
    there = store.add(meeting, 1)
    begin, pause = time.monotonic(), 0.001
    # Store.wait has a time-out, too, after which a TCPStore of older versions of PyTorch takes a late answer for that to its next question.
    while there < ranks:
        if time.monotonic() - begin >= PATIENCE:
            warnings.warn(f"only {there} of {ranks} ranks have {occasion} after {PATIENCE:g} s, and this one waits for the others; every "
                          f"rank makes a Capture, calls step() and closes it, at the same points of the program")
            return
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
        there = store.add(meeting, 0)


def _store(group: Any) -> Any:
    """The store over which the group was formed; None where PyTorch does not say. It is no part of its documented interface."""
    c10d = dist.distributed_c10d
    try:
        groups = c10d._world.pg_map if hasattr(c10d, "_world") else c10d._pg_map  # pylint: disable=protected-access
        return groups[c10d._get_default_group() if group is None else group][1]  # pylint: disable=protected-access
    except (AttributeError, KeyError, TypeError):
        return None


def rank_path(path: str, rank: int) -> str:
    """Returns the file of one of several ranks: run.rank3.h5 for run.h5."""
    stem, extension = os.path.splitext(path)
    return f"{stem}.rank{rank}{extension or '.h5'}"


def merge_ranks(group: Any, path: str, written: int, copy: bool, failed: Optional[Error]) -> None:
    """Rank 0 merges when all ranks have closed; every rank leaves when that is done, and learns how it went."""
    elsewhere = meet(group, None if failed is None else str(failed), f"closed the capture to {path}")
    if failed is not None:
        raise failed
    if elsewhere is not None:
        raise Error(f"the files of the ranks are not merged, because another rank could not write its own: {elsewhere}")
    failure = None
    if dist.get_rank(group) == 0 and written > 0:
        paths = [rank_path(path, rank) for rank in range(dist.get_world_size(group))]
        unseen = [path for path in paths if not os.path.exists(path)]
        try:
            if unseen:
                warnings.warn(f"{', '.join(unseen)} cannot be seen from rank 0; bring the ranks' files into one folder and merge them "
                              f"with 'gradtool merge'")
            else:
                merge_files(paths, path, copy=copy, replace=True)
                for each in paths if copy else []:
                    os.remove(each)
        except Exception as error:  # pylint: disable=broad-except
            failure = str(error)
    failure = meet(group, failure)  # nobody is missed here, since merging may take long
    if failure is not None:
        raise Error(f"the files of the ranks could not be merged: {failure}")

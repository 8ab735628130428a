"""Names of files: a random one until they are whole, and a lock while they grow, as the program does it."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from typing import Union

from ._errors import UsageError

_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", 37)  # of the open file, not of the process


def beside(path: str) -> str:
    """A name in the folder of `path` that nobody has, for what is renamed to it when it is whole."""
    return os.path.join(os.path.dirname(os.path.abspath(path)), f".gradtool-{secrets.token_hex(12)}")


def as_text(path: Union[str, os.PathLike]) -> str:
    """A path as text. Raises UsageError for what no file can be called."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        text = ""
    if not text or "\0" in text:
        raise UsageError(f"the path is {path!r}; valid is the name of a file")
    return text


def identity(found: os.stat_result) -> tuple:
    """Tells a file from another one that has its name later."""
    return found.st_dev, found.st_ino


def _lock(descriptor: int, kind: int) -> bool:
    """False where another lock is in the way; True also where the file system has none."""
    try:
        fcntl.fcntl(descriptor, _SET_LOCK, struct.pack("hhqqi0q", kind, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def mark_as_being_written(descriptor: int) -> None:
    """From here on the file is not replaced by gradtool, neither by the program nor by this package, until it is closed."""
    _lock(descriptor, fcntl.F_RDLCK)


def mark_as_written(descriptor: int) -> None:
    """Ends that. Closing the file would not where a forked process still has it open."""
    _lock(descriptor, fcntl.F_UNLCK)


def expect_replaceable(path: str) -> None:
    """Raises UsageError where a capture is writing the file. Nothing where there is none."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not _lock(descriptor, fcntl.F_WRLCK):
            raise UsageError(f"{path} is being written by another capture, and is not replaced before that is closed; give another path")
    finally:
        os.close(descriptor)

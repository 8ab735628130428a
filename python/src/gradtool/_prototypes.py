"""Codecs and reducers in Python that live in this process, served to the program while it runs (docs/prototypes.md)."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
from typing import Any, Iterator

from . import _prototype_server as server
from ._errors import UsageError


def _serve(listener: socket.socket, prototype: Any) -> None:
    """Answers each connection in a thread of its own: they are the ranks of the program."""
    while True:
        try:
            control, _ = listener.accept()
        except OSError:  # closed: the program has ended
            return
        threading.Thread(target=_answer, args=(control, prototype), daemon=True).start()


def _answer(control: socket.socket, prototype: Any) -> None:
    with control:
        path = b""
        while not path.endswith(b"\n"):  # the program says first which memory it shares
            byte = control.recv(1)
            if not byte:
                return
            path += byte
        memory = os.open(path.decode().rstrip("\n"), os.O_RDWR)
        try:
            cls = prototype if isinstance(prototype, type) else type(prototype)
            source = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
            server.serve(control, memory, lambda: {cls.__name__: prototype}, source)
        except OSError:  # the program has ended without a word
            pass
        finally:
            os.close(memory)


@contextlib.contextmanager
def served(codecs: Any) -> Iterator[list]:
    """The codecs as the command line takes them: texts as they are, for classes and objects the socket that serves them."""
    listed = list(codecs) if isinstance(codecs, (list, tuple)) else [codecs]
    with contextlib.ExitStack() as stack:
        folder, texts = None, []
        for codec in listed:
            if isinstance(codec, (str, os.PathLike)):
                texts.append(os.fspath(codec))
                continue
            cls = codec if isinstance(codec, type) else type(codec)
            if not server.is_prototype(cls):
                raise UsageError(f"codec {codec!r} has neither encode and decode nor reduce; valid are texts such as 'topk:ratio=0.01', "
                                 f"and classes and objects with these methods")
            # The path of a socket has 107 bytes at most, which a long TMPDIR would exceed.
            folder = folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtool-", dir="/tmp"))
            name, count = cls.__name__, 1
            while os.path.exists(os.path.join(folder, name)):
                count += 1
                name = f"{cls.__name__}-{count}"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(os.path.join(folder, name))
            listener.listen(64)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)  # wakes the thread that accepts
            threading.Thread(target=_serve, args=(listener, codec), daemon=True).start()
            texts.append(f"python:@{os.path.join(folder, name)}")
        yield texts

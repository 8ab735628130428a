"""gradtool from Python: capture the gradients of your own training, study and replay them, and compress them in DDP.

    with gradtool.Capture(model, "run.h5", iterations=gradtool.windows(total_steps)) as capture:
        ...
        loss.backward()
        capture.step(loss)

`Capture`, `merge` and `open` need torch or h5py alone; `Codec`, `ddp_hook` and `fsdp_hook` need the compiled module, which
`pip install ./python` builds, and `bench` and `analyze` the program, which `GRADTOOL_PROGRAM=ON` adds to it.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from ._errors import DataError, Error, UnavailableError, UsageError
from ._files import GradientFile, open

__version__ = "0.3.0"

# Prototypes (python:mine.py) run in an interpreter with this one's packages, unless the user names another.
if sys.executable:
    os.environ.setdefault("GRADTOOL_PYTHON", sys.executable)

if TYPE_CHECKING:
    from ._capture import Capture
    from ._checkpoints import import_checkpoint
    from ._codec import Codec, codecs
    from ._fsdp_hook import FsdpHook, fsdp_hook
    from ._hook import DdpHook, ddp_hook
    from ._merge import merge
    from ._program import analyze, bench, run
    from ._trial import Trial, trial
    from ._trial_result import TrialResult
    from ._windows import windows

# The modules of all other names. They are loaded at their first use, so that a capture works without the compiled module, and reading a
# file without torch.
_HOME = {
    "Capture": "_capture", "import_checkpoint": "_checkpoints", "merge": "_merge", "Codec": "_codec",
    "codecs": "_codec", "ddp_hook": "_hook", "DdpHook": "_hook", "fsdp_hook": "_fsdp_hook", "FsdpHook": "_fsdp_hook", "bench": "_program", "analyze": "_program",
    "run": "_program", "trial": "_trial", "Trial": "_trial", "TrialResult": "_trial_result",
    "windows": "_windows",
}
__all__ = ["DataError", "Error", "GradientFile", "UnavailableError", "UsageError", "open", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradtool' has no attribute {name!r}")
    value = getattr(importlib.import_module("." + _HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""Whether this torch has the FSDP2 that the package can see into."""

import pytest
import torch

try:
    from torch.distributed.fsdp import FSDPModule
    MISSING = [name for name in ("set_custom_reduce_scatter", "set_all_reduce_hook") if not hasattr(FSDPModule, name)]
except (ImportError, ValueError):  # torch 1.13 cannot import its FSDP under Python 3.11
    MISSING = ["FSDPModule"]

needs_fsdp2 = pytest.mark.skipif(bool(MISSING), reason=f"torch {torch.__version__} has no {', '.join(MISSING)}")

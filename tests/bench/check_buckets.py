"""--granularity bucket:SIZE cuts tensors as PyTorch DDP does: compared with compute_bucket_assignment_by_size of the
installed PyTorch, on ResNet-20's tensors and on random ones.

Usage: check_buckets.py GRADTOOL
"""
import json
import random
import subprocess
import sys
import tempfile

try:
    import torch
    from torch.distributed import _compute_bucket_assignment_by_size as assignment
except ImportError as error:
    print(f"skipped: needs PyTorch with torch.distributed ({error})")
    sys.exit(77)
import h5py
import numpy as np

gradtool = sys.argv[1]
FIRST = 1 << 20  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES


def units(elements, sizes, halves):
    """Bytes of each unit that bench makes of a capture with such tensors, of which `halves` are bfloat16, for each size of a bucket."""
    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(f"{folder}/c.h5", "w") as file:
            file.attrs.update(format="gradtool.gradients", schema_version=1, complete=1, workers=2)
            file["steps/iteration"] = np.arange(1, dtype=np.int64)
            for i, n in enumerate(elements):
                group = file.create_group(f"tensors/{i:04d}")
                group.attrs.update(name=f"t{i}", kind="other", layout="none", shape=np.array([n]))
                values = np.ones((1, 2, n), np.float32)  # only their number matters
                if i in halves:
                    group["gradient"] = (values.view(np.uint32) >> 16).astype(np.uint16)
                    group["gradient"].attrs["dtype"] = "bfloat16"
                else:
                    group["gradient"] = values
        run = subprocess.run([gradtool, "bench", f"{folder}/c.h5", "--codec", "none", "-n", "1",
                              *(word for size in sizes for word in ("--granularity", f"bucket:{size}B")), "--timing", "isolated", "--json", f"{folder}/r.json"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        with open(f"{folder}/r.json") as file:
            rows = [row for row in json.load(file)["rows"] if row["codec"] == "none"]
        assert len(rows) == len(sizes), rows
        return [[round(sum(use["bytes"] for use in unit["collectives"])) for unit in row["units"]] for row in rows]


def ddp(elements, size, halves):
    """Builds buckets as DDP's reducer rebuilds its own: in the order in which gradients become ready."""
    ready = list(reversed(range(len(elements))))
    tensors = [torch.empty(elements[i], dtype=torch.bfloat16 if i in halves else torch.float32) for i in ready]
    result = assignment(tensors, [min(FIRST, size), size], [False] * len(tensors), ready)
    buckets = result[0] if isinstance(result, tuple) else result
    # DDP sorts nothing when it is told the order; the numbers are those of the tensors in the file.
    return [sum(elements[i] * (2 if i in halves else 4) for i in bucket) for bucket in buckets]


random.seed(1)
cases = [([random.choice([1, 10, 1000, 30000, 100000, 300000]) for _ in range(random.randint(1, 25))], (400, 100_000, 1_000_000, 3_000_000))
         for _ in range(4)]
resnet20 = [144, 16, 16] + [2304, 16, 16] * 6
for width, last in ((32, 16), (64, 32)):
    resnet20 += [9 * last * width, width, width] + [9 * width * width, width, width] * 5
resnet20 += [640, 10]
cases.append((resnet20, (25_000_000,)))
compared = 0
for elements, sizes in cases:
    for halves in (set(), set(range(0, len(elements), 3))):
        for size, here in zip(sizes, units(elements, sizes, halves)):
            there = ddp(elements, size, halves)
            if halves:  # DDP lists buckets as they close, here they are listed as they begin
                here, there = sorted(here), sorted(there)
            assert here == there, (elements, size, here, there)
            compared += 1
print(f"{compared} models cut as DDP cuts them; ResNet-20 at 25 MB, a third of it bfloat16: {here}")

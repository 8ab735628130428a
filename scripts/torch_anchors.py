#!/usr/bin/env python3
"""Times PyTorch's own operations on GPU 0, the ceilings and the rivals beside which gradtool's kernels are read: a device-to-device
copy after half a second of copies, a fill, one read of everything (sum), a cast to binary16, and the selection of the largest 1 % of
magnitudes that are there already, by torch.topk and by a whole sort. Medians of five batches between CUDA events, before each execution
a flush of the L2 cache, as gradtool_microbench does it.
Exits with 77 where there is no PyTorch with CUDA.

Usage: torch_anchors.py --elements N [--elements N ...] --out FILE.json
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

RATIO = 0.01
BATCHES, EXECUTIONS = 5, 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--elements", type=int, action="append", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit(77)
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(1)
    words = 2 * torch.cuda.get_device_properties(0).L2_cache_size // 4
    written, read = (torch.zeros(words, device="cuda") for _ in range(2))

    def microseconds(work):
        work()
        batches = []
        for _ in range(BATCHES):
            pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(EXECUTIONS)]
            for begin, end in pairs:
                written.fill_(1.0)
                read.max()
                begin.record()
                work()
                end.record()
            torch.cuda.synchronize()
            batches.append(statistics.fmean(1000.0 * begin.elapsed_time(end) for begin, end in pairs))
        return statistics.median(batches)

    rows = []
    for elements in options.elements:
        x = torch.randn(elements, device="cuda") * 1e-3
        to = torch.empty_like(x)
        cold = {} if rows else {"cold_copy": microseconds(lambda: to.copy_(x))}
        begin = time.monotonic()
        while time.monotonic() - begin < 0.5:
            to.copy_(x)
            torch.cuda.synchronize()
        row = {"elements": elements, **cold, "copy": microseconds(lambda: to.copy_(x)), "fill": microseconds(lambda: to.fill_(1.0)),
               "read": microseconds(x.sum), "half": microseconds(x.half)}
        magnitudes = x.abs()
        k = max(1, round(RATIO * elements))
        row |= {"k": k, "topk": microseconds(lambda: torch.topk(magnitudes, k, sorted=False)), "sort": microseconds(lambda: torch.sort(magnitudes))}
        rows.append(row)
        print("  ".join(f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()))
        del x, to, magnitudes
    options.out.write_text(json.dumps({"torch": torch.__version__, "card": torch.cuda.get_device_name(0), "microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times torch.topk of a gradient's magnitudes, which are there already, on GPU 0, by CUDA events: what gradtool's topk is
compared with.
Exits with 77 where there is no PyTorch with CUDA.

Usage: torch_topk.py --elements N --ratio R --out FILE.json
"""
import argparse
import json
import pathlib
import sys

REPETITIONS = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit(77)
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(1)
    inputs = [(torch.randn(options.elements, device="cuda") * 1e-3).abs() for _ in range(2)]  # two in turn, so that the L2 cache helps little
    k = max(1, round(options.ratio * options.elements))

    def once(turn):
        return torch.topk(inputs[turn % 2], k, sorted=False)

    for turn in range(3):
        once(turn)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for turn in range(REPETITIONS):
        once(turn)
    end.record()
    end.synchronize()
    options.out.write_text(json.dumps({"torch": torch.__version__, "elements": options.elements, "k": k,
                                       "microseconds": 1000.0 * begin.elapsed_time(end) / REPETITIONS}) + "\n")


if __name__ == "__main__":
    main()

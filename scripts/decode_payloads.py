#!/usr/bin/env python3
"""Decodes what `gradtool bench FILE --codec SPEC --payloads FOLDER` wrote, with the NumPy decoders of scripts/payloads,
which share nothing with the C++ code: a float32 .npy file for each message that is a codec's payload.

Usage: scripts/decode_payloads.py FOLDER [--rank R] [--step S]
For codecs that are one payload a unit (aggregation gather or sum). Sizes exchanged before a gather are left out.
"""
import argparse
import csv
import pathlib
import sys

import numpy as np

import payloads


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--step", type=int)
    options = parser.parse_args()
    table = options.folder / f"rank{options.rank}.csv"
    if not table.exists():
        print(f"decode_payloads.py: no {table}; give the folder of gradtool bench --payloads", file=sys.stderr)
        return 2
    data = (options.folder / f"rank{options.rank}.bin").read_bytes()
    with table.open() as file:
        rows = list(csv.DictReader(file))
    done = 0
    for row, after in zip(rows, rows[1:] + [None]):
        same_unit = after is not None and (after["step"], after["unit"]) == (row["step"], row["unit"])
        if row["call"] == "all_gather" and same_unit:  # the sizes
            continue
        if options.step is not None and int(row["step"]) != options.step:
            continue
        start = int(row["offset"])
        values = payloads.module(row["codec"]).decode(payloads.parameters(row["params"]), int(row["elements"]),
                                                      data[start:start + int(row["bytes"])])
        name = f"rank{row['rank']}-step{row['step']}-unit{row['unit']}.npy"
        np.save(options.folder / name, values)
        done += 1
    print(f"wrote {done} arrays to {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

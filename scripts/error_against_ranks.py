#!/usr/bin/env python3
"""The table of docs/collectives.md: what the mean of p ranks loses by the way that its payloads take.

    error_against_ranks.py [--gradtool gradtool] [--ranks 2,4,8,16,32,64] [--size 1MB]

Prints Markdown. Runs gradtool bench over synthetic gradients, once for each number of ranks and way: a minute or two.
"""
import argparse
import csv
import io
import subprocess

CODECS = {"bf16": "bf16", "fp8": "fp8", "qsgd, 8 bits": "qsgd:bits=8,bucket=512"}
WAYS = {"sum": "ring", "hop": "hop", "gather": "gather", "alltoall": "alltoall"}


def nmse(options, codec, way, ranks):
    run = subprocess.run([options.gradtool, "bench", "--synthetic", options.size, "--ranks", str(ranks), "--codec", codec, "--reduce", way,
                          "--timing", "isolated", "-n", "1", "--threads", "1", "--csv", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True)
    if "cannot ride on a sum" in run.stderr:
        return None
    if run.returncode != 0:
        raise SystemExit(run.stderr)
    rows = [row for row in csv.DictReader(io.StringIO(run.stdout)) if row["codec"] == codec.partition(":")[0]]
    return float(rows[0]["nmse"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradtool", default="gradtool")
    parser.add_argument("--ranks", default="2,4,8,16,32,64")
    parser.add_argument("--size", default="1MB")
    options = parser.parse_args()
    counts = [int(p) for p in options.ranks.split(",")]
    print("| codec | way | " + " | ".join(f"{p} ranks" for p in counts) + " |")
    print("| --- | --- |" + " --- |" * len(counts))
    for name, codec in CODECS.items():
        for way, shown in WAYS.items():
            errors = [nmse(options, codec, way, p) for p in counts]
            if None not in errors:
                print(f"| {name} | {shown} | " + " | ".join(f"{error:.2g}" for error in errors) + " |", flush=True)


main()

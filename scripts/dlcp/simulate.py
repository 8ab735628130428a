#!/usr/bin/env python3
"""Simulates DLCP beside DCTCP and pFabric on a leaf-spine network of 144 hosts, and codecs' collectives beside other traffic, with
gradtool_netsim. Writes completions.csv, iterations.csv, contention.csv, queue.csv and simulation.md to reports/dlcp.

Usage: scripts/dlcp/simulate.py [--netsim build/release/bin/gradtool_netsim] [--gradtool build/release/bin/gradtool] [--out reports/dlcp]
                                [--work build/dlcp] [--jobs 2] [--quick]
Needs ns-3 3.37 in the build (Debian: libns3-dev). Twenty minutes on two busy cores; what is already in --work is not simulated again. --quick
takes 16 hosts and proves nothing.
"""
import argparse
import concurrent.futures
import csv
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/dlcp"))
import findings  # noqa: E402

LENET = ROOT / "datasets/lenet5-fashion-mnist.h5"
LLAMA = ROOT / "datasets/llama-shakespeare.h5"
RIVALS = "dlcp,dctcp,pfabric"
CODECS = ["none", "fp16", "qsgd:bits=4", "terngrad", "topk:ratio=0.01", "powersgd:rank=4", "signsgd"]


def experiments(quick):
    """Name and options of every simulation of iterations. Packets have 4096 bytes, because a simulator's time goes by packets."""
    fabric = ["--leaves", 4, "--spines", 2, "--hosts-per-leaf", 4] if quick else []
    common = [LENET, "--payload", 4096, *fabric]
    server = [*common, "--pattern", "ps"]
    yield "server", [*server, "--scale", 4, "--iterations", 4, "--transport", RIVALS + ",tcp"]
    yield "server-background", [*server, "--scale", 1, "--iterations", 1, "--transport", RIVALS, "--background", 0.1]
    yield "server-compressed", [*server, "--scale", 0.25, "--iterations", 4, "--transport", RIVALS]
    # Parameter servers beside as much computation as their links need, as in a job that is worth distributing.
    yield "server-compute", [*server, "--scale", 4, "--iterations", 3, "--transport", RIVALS, "--compute-us", 12000 if not quick else 1300]
    ring = [*common, "--pattern", "ring", "--granularity", "model"]
    yield "ring", [*ring, "--scale", 10, "--iterations", 2, "--transport", RIVALS]
    yield "ring-background", [*ring, "--scale", 10, "--iterations", 1, "--transport", RIVALS, "--background", 0.1]
    # These runs show what DLCP's parts are worth, and what DCTCP's timeout costs.
    parts = [*server, "--scale", 1, "--iterations", 4, "--transport", "dlcp"]
    yield "dlcp-whole", parts
    yield "dlcp-without-marking", [*parts, "--dlcp-without", "marking"]
    yield "dlcp-without-priorities", [*parts, "--dlcp-without", "priorities"]
    yield "dlcp-without-loss", [*parts, "--bound", 0, "--pull-bound", 0]
    yield "dlcp-without-spraying", [*parts, "--routing", "ecmp"]
    yield "dlcp-slow-start", [*parts, "--dlcp-start", 0.1]
    for rto in (10, 1, 0.5):
        yield f"dctcp-rto-{rto}", [*server, "--scale", 1, "--iterations", 4, "--transport", "dctcp", "--min-rto-ms", rto]
    for leaves, hosts in ((3, 4),) if quick else ((3, 4), (3, 16), (6, 16)):
        yield f"hosts-{leaves * hosts}", [LENET, "--payload", 4096, "--pattern", "ps", "--leaves", leaves, "--hosts-per-leaf", hosts, "--scale", 1,
                                          "--iterations", 4, "--transport", RIVALS]


def run(words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"simulate.py: {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def simulate(netsim, work, name, options):
    paths = [work / f"{name}.{kind}.csv" for kind in ("completions", "iterations")]
    if not all(path.exists() for path in paths):
        run([netsim, "iterations", *options, "--csv", paths[0], "--iterations-csv", paths[1]])
        print(f"done: {name}", file=sys.stderr)


def record(gradtool, work, codec):
    folder = work / "payloads" / codec.replace(":", "-")
    if not (folder / "rank0.csv").exists():
        run([gradtool, "bench", LLAMA, "--codec", codec, "--timeout", 0.1, "--payloads", folder, "--csv", work / "bench.csv"])
    return folder


def contention(netsim, gradtool, work, quick):
    """Sixteen hosts behind two spines whose links together carry half of what the hosts of a leaf can send."""
    folders = [record(gradtool, work, codec) for codec in CODECS]
    fabric = ["--leaves", 4, "--spines", 2, "--hosts-per-leaf", 4, "--uplink", 100, "--payload", 4096, "--min-rto-ms", 1, "--steps", 3,
              "--scale", 4 if quick else 40]
    jobs = []
    for load in (0, 0.2, 0.4):
        path = work / f"contention-{load}.csv"
        jobs.append((path, [netsim, "replay", *folders, *fabric, "--transport", "dctcp", "--background", load, "--csv", path]))
    return jobs


def joined(paths, column, values, out):
    """The rows of several tables in one, with a first column that says from which experiment they are."""
    rows, header = [], None
    for path, value in zip(paths, values):
        with open(path) as file:
            reader = csv.reader(file)
            header = [column, *next(reader)] if column else next(reader)
            rows += [[value, *row] if column else row for row in reader]
    with open(out, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--netsim", default=ROOT / "build/release/bin/gradtool_netsim")
    parser.add_argument("--gradtool", default=ROOT / "build/release/bin/gradtool")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports/dlcp")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/dlcp")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    work = arguments.work / ("quick" if arguments.quick else "full")
    work.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)

    chosen = list(experiments(arguments.quick))
    replays = contention(arguments.netsim, arguments.gradtool, work, arguments.quick)
    queue = work / "queue.csv"
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [pool.submit(simulate, arguments.netsim, work, name, options) for name, options in chosen]
        waiting += [pool.submit(run, words) for path, words in replays if not path.exists()]
        if not queue.exists():
            waiting.append(pool.submit(run, [arguments.netsim, "queue", "--load", "0.3,0.5,0.7,0.9", "--packets", 20000 if arguments.quick else 1000000,
                                             "--csv", queue]))
        for each in waiting:
            each.result()

    names = [name for name, _ in chosen]
    for kind in ("completions", "iterations"):
        joined([work / f"{name}.{kind}.csv" for name in names], "experiment", names, arguments.out / f"{kind}.csv")
    joined([path for path, _ in replays], None, [None] * len(replays), arguments.out / "contention.csv")
    joined([queue], None, [None], arguments.out / "queue.csv")
    findings.write(arguments.out)


if __name__ == "__main__":
    main()

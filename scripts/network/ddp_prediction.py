#!/usr/bin/env python3
"""Does bench predict what a training gains? Trains a ResNet-18 (its form for 32 x 32 images, 11.2 million parameters) with
DistributedDataParallel on the shaped cluster, uncompressed, with PyTorch's own hooks and with gradtool's, and sets the
measured iterations beside those that `gradtool bench --network --compute-ms` models from a capture of the same training.

Usage: scripts/network/ddp_prediction.py --out FOLDER [--rates 1gbit,200mbit] [--iterations 8] [--batch 4]
Needs root and scripts/shaped-cluster.sh, torch, the Python package (PYTHONPATH or installed) and `gradtool` in PATH.
"""
import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from torch import distributed as dist
from torch import nn

# Name of a run, and the codec of bench that stands for it. PyTorch's PowerSGD is ours, as far as bytes and sums go.
RUNS = [("none", "none"), ("torch fp16", "fp16"), ("torch powerSGD rank 4", "powersgd:rank=4"), ("gradtool none", "none"),
        ("gradtool fp16", "fp16"), ("gradtool powersgd:rank=4", "powersgd:rank=4"), ("gradtool qsgd:bits=4", "qsgd:bits=4"),
        ("gradtool topk:ratio=0.01", "topk:ratio=0.01")]
RANKS = 4


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                                  nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                                                 nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18():
    layers, width = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(width, outputs, stride), Block(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def register(model, run):
    """Registers the hook that a run's name says; returns gradtool's, which counts bytes."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    kind, _, spec = run.partition(" ")
    if kind == "gradtool":
        import gradtool
        return gradtool.ddp_hook(spec, threads=1).register(model)
    if run == "torch fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif run.startswith("torch powerSGD"):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return None


def train(options):
    """One rank of every run on this cluster; rank 0 writes what was measured."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # of a host of the cluster
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"file://{options.rendezvous}")
    results = []
    for run, codec in RUNS + ([("capture", "none")] if options.capture else []):
        torch.manual_seed(0)
        # With several buckets PyTorch's PowerSGD ends on gloo because the sizes of two ranks' all-reduces do not match. So it gets
        # one bucket.
        one_bucket = run.startswith("torch powerSGD")
        dist._DEFAULT_FIRST_BUCKET_BYTES = 2**30 if one_bucket else 2**20  # pylint: disable=protected-access
        model = nn.parallel.DistributedDataParallel(resnet18(), bucket_cap_mb=1024 if one_bucket else 25)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        torch.manual_seed(rank)
        inputs, targets = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,))
        capture = None
        if run == "capture":
            import gradtool
            capture = gradtool.Capture(model, options.capture, replace=True, first=3, optimizer=optimizer, name="ResNet-18")
        hook = None if capture else register(model, run)
        times, processor = [], []
        for iteration in range(3 + (4 if capture else options.iterations)):
            dist.barrier()
            begin, begin_processor = time.perf_counter(), time.process_time()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            if capture:
                capture.step(loss)
            optimizer.step()
            if iteration >= 3:  # DDP cuts its buckets anew after the first, and PyTorch's PowerSGD begins at the second
                times.append(time.perf_counter() - begin)
                processor.append(time.process_time() - begin_processor)
        if capture:
            capture.close()
            continue
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        used = torch.tensor([statistics.median(processor)], dtype=torch.float64)
        dist.all_reduce(used)
        results.append({"run": run, "codec": codec, "iteration_ms": [1e3 * t for t in slowest.tolist()],
                        "processor_ms": 1e3 * used.item(),
                        "payload_bytes": hook.payload_bytes if hook else None})
        if rank == 0:
            print(f"{options.rate} {run}: {1e3 * statistics.median(slowest.tolist()):.0f} ms", file=sys.stderr, flush=True)
    if rank == 0:
        pathlib.Path(options.results).write_text(json.dumps(results))
    dist.barrier()


def model_of(capture, rate):
    """Returns bench's model: milliseconds of an iteration by codec, without overlap and with it; and of its computation, as captured."""
    bits = float(rate.replace("gbit", "e9").replace("mbit", "e6"))
    # TCP's and IP's headers take 4.4 % of a link of Ethernet with frames of 1500 bytes.
    network = f"cluster:alpha=150us,beta={bits / 8 * 0.956 / 1e9:.5f}GBps"
    codecs = [argument for codec in sorted({codec for _, codec in RUNS}) for argument in ("--codec", codec)]
    modelled = {}
    for overlap in ("none", "bucket"):
        table = f"{capture}.{rate}.{overlap}.csv"
        subprocess.run(["gradtool", "bench", capture, *codecs, "--network", network, "--compute-ms", "captured", "--threads", "1",
                        "--overlap", overlap, "--timeout", "1", "--csv", table], check=True, stdout=subprocess.DEVNULL)
        with open(table, encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["time_source"] == "modelled" and row["iteration_ms"] and row["aggregation"] != "alltoall":  # the hook gathers
                    name = row["codec"] + (":" + row["params"] if row["params"] not in ("", "-") else "")
                    modelled[overlap, name] = float(row["iteration_ms"])
                    modelled[overlap, row["codec"]] = float(row["iteration_ms"])
                    compute_ms = float(row["compute_ms"])
    return modelled, compute_ms


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rates", default="1gbit,200mbit")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    for inner in ("--rank-of", "--rendezvous", "--results", "--capture", "--rate"):
        parser.add_argument(inner, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return train(options)
    cluster = str(pathlib.Path(__file__).resolve().parents[1] / "shaped-cluster.sh")
    options.out.mkdir(parents=True, exist_ok=True)
    capture = str(options.out / "resnet18.h5")
    rows = []
    for number, rate in enumerate(options.rates.split(",")):
        subprocess.run([cluster, "up", "--hosts", str(RANKS), "--rate", rate], check=True)
        try:
            rendezvous, results = options.out / f"rendezvous.{rate}", options.out / f"measured.{rate}.json"
            rendezvous.unlink(missing_ok=True)
            subprocess.run([cluster, "run", "--", sys.executable, str(pathlib.Path(__file__).resolve()), "--out", options.out,
                            "--rank-of", "cluster", "--rendezvous", rendezvous.resolve(), "--results", results.resolve(),
                            "--rate", rate, "--iterations", str(options.iterations),
                            "--batch", str(options.batch), *(["--capture", os.path.abspath(capture)] if number == 0 else [])],
                           check=True)
        finally:
            subprocess.run([cluster, "down"], check=True)
        modelled, compute_ms = model_of(capture, rate)
        for result in json.loads(results.read_text()):
            measured = statistics.median(result["iteration_ms"])
            name = result["codec"]
            row = {"rate": rate, "run": result["run"], "codec": name, "measured_ms": round(measured, 1),
                   "processor_ms": round(result["processor_ms"], 1), "compute_ms": round(compute_ms, 1)}
            for overlap in ("none", "bucket"):
                value = next(v for k, v in modelled.items() if k[0] == overlap and k[1].startswith(name.split(":")[0]))
                row[f"modelled_{overlap}_ms"] = round(value, 1)
                row[f"off_{overlap}"] = round(value / measured - 1, 3)
            rows.append(row)
    with open(options.out / "ddp_prediction.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(" | ".join(str(value) for value in row.values()))
    print(f"wrote {options.out / 'ddp_prediction.csv'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Real time to accuracy: trains over MPI on the shaped cluster with `gradtool train`, and sets the measured time of a step beside
what `train` itself and `gradtool bench --compute-ms` model for the network that `gradtool probe` finds there. Then it trains until
a test accuracy is reached.

Usage: scripts/network/train_prediction.py --out FOLDER [--rates 1gbit,100mbit] [--models resnet20:32:60,resnet18:4:16]
           [--until resnet20:32:312:26:0.75,lenet5:32:468:26:0.75]
  a model is NAME:BATCH:STEPS; to reach an accuracy NAME:BATCH:STEPS:EVERY:ACCURACY, evaluated after so many steps each time; batches are of
  each of the four workers; an empty list leaves the part out
Writes train_prediction.csv and time_to_accuracy.csv. Needs root, scripts/shaped-cluster.sh, dataset-fashion-mnist and `gradtool` in PATH. A run that is there is not made again.
"""
import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
RANKS = 4
CODECS = ["bf16", "qsgd:bits=4", "topk:ratio=0.01", "powersgd:rank=4"]
# `none` is MPI's own all-reduce. Its ring is what the models model; what Open MPI takes by itself stands beside it.
RING = ["env", "OMPI_MCA_coll_tuned_use_dynamic_rules=1", "OMPI_MCA_coll_tuned_allreduce_algorithm=4"]


def run(*command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed ({done.returncode}): {done.stderr[-800:]}")
    return done.stdout


def probed(options, rate):
    """The file of the network that probe finds: its ring, whose sums and copies four hosts share two cores for."""
    network = options.out / f"net-{rate}.json"
    if not network.exists():
        run(HERE.parent / "shaped-cluster.sh", "with", "--hosts", RANKS, "--rate", rate, "-n", RANKS, "--", "gradtool", "probe", "--collective",
            "all_reduce_ring", "--fit", "all_reduce_ring", "--name", "link", "-o", network)
    return network


def columns(row):
    return row["codec"], row["params"]


def modelled_seconds(row):
    return next(value for name, value in row.items() if name.startswith("modelled_"))


def train(folder, model, batch, steps, rate, network, codecs, environment):
    """The last row of each codec of a training on the shaped cluster."""
    if not (folder / "train.json").exists():
        run(HERE.parent / "shaped-cluster.sh", "with", "--hosts", RANKS, "--rate", rate, "-n", RANKS, "--", *environment, "gradtool", "train", "--comm",
            "mpi", "--model", model, "--batch-size", batch, "--steps", steps, "--test-images", 100, "--threads", 1, "--network", network,
            "--overlap", "none", *codecs, "--out", folder, "--force")
    last = {}
    for row in json.loads((folder / "train.json").read_text())["rows"]:
        last[columns(row)] = row
    return last


def measure(options, model, batch, steps, rate):
    """Rows: codec, seconds a step measured, as train models it, as bench does; and where the measured time went."""
    folder = options.out / f"{model}-{rate}"
    network = probed(options, rate)
    codecs = [argument for codec in CODECS for argument in ("--codec", codec)]
    last = train(folder, model, batch, steps, rate, network, codecs, RING)
    library = train(options.out / f"{model}-{rate}-library", model, batch, steps, rate, network, ["--codec", "none"], [])
    capture = options.out / f"{model}.h5"
    if not capture.exists():
        run("gradtool", "capture", "--model", model, "--batch-size", batch, "--workers", RANKS, "--steps", 6, "--every", 2, "--end-step", 6, "--out", capture)
    compute_ms = 1e3 * last["none", "default"]["compute_seconds"] / steps
    table = options.out / f"{model}-{rate}.csv"
    run("gradtool", "bench", capture, *codecs, "--timing", "isolated", "--threads", 1, "--network", network, "--nodes", RANKS, "--compute-ms",
        f"{compute_ms:.3f}", "--overlap", "none", "--csv", table)
    with open(table, encoding="utf-8", newline="") as file:
        modelled = {columns(row): row for row in csv.DictReader(file) if row["time_source"] == "modelled" and row["tensor"] == "all"
                    and row["aggregation"] != "alltoall"}  # train gathers
    for key, row in last.items():
        measured = row["total_seconds"] / steps
        yield {"model": model, "rate": rate, "codec": row["codec"], "params": row["params"], "steps": steps,
               "measured_ms": 1e3 * measured, "train_modelled_ms": 1e3 * modelled_seconds(row) / steps,
               "bench_modelled_ms": float(modelled[key]["iteration_ms"]),
               **{f"{what}_ms": 1e3 * row[f"{what}_seconds"] / steps for what in ("compute", "encode", "communicate", "decode")},
               "wire_megabytes": row["wire_bytes"] / steps / 1e6, "library_ms": 1e3 * library[key]["total_seconds"] / steps if key in library else ""}


def until(options, model, batch, steps, every, accuracy, rate):
    """Rows: codec, steps and seconds until the accuracy was reached, as measured and as train models them."""
    folder = options.out / f"{model}-{rate}-accuracy"
    codecs = [argument for codec in CODECS for argument in ("--codec", codec)]
    if not (folder / "train.json").exists():
        run(HERE.parent / "shaped-cluster.sh", "with", "--hosts", RANKS, "--rate", rate, "-n", RANKS, "--", *RING, "gradtool", "train", "--comm", "mpi",
            "--model", model, "--batch-size", batch, "--steps", steps, "--evaluate-every", every, "--test-images", 1000, "--threads", 1, "--network", probed(options, rate), "--overlap",
            "none", "--target-accuracy", accuracy, *codecs, "--out", folder, "--force")
    with open(folder / "summary.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            modelled = next(value for name, value in row.items() if name.startswith("modelled_") and name.endswith("_to_target"))
            yield {"model": model, "rate": rate, "codec": row["codec"], "params": row["params"], "target_accuracy": accuracy,
                   "final_accuracy": row["final_accuracy"], "steps": row["steps_to_target"], "measured_seconds": row["total_seconds_to_target"],
                   "modelled_seconds": modelled}


def write(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rates", default="1gbit,100mbit")
    parser.add_argument("--models", default="resnet20:32:60,resnet18:4:16")
    parser.add_argument("--until", default="resnet20:32:312:26:0.75,lenet5:32:468:26:0.75")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for model, batch, steps in (one.split(":") for one in options.models.split(",") if one):
        for rate in options.rates.split(","):
            for row in measure(options, model, int(batch), int(steps), rate):
                rows.append(row)
                off = {what: row[f"{what}_modelled_ms"] / row["measured_ms"] - 1 for what in ("train", "bench")}
                print(f"{model} {rate} {row['codec']:<10} measured {row['measured_ms']:7.1f} ms, train {off['train']:+.0%}, bench {off['bench']:+.0%}",
                      flush=True)
    if rows:
        write(options.out / "train_prediction.csv", rows)
    for what in ("train", "bench") if rows else ():
        errors = [abs(row[f"{what}_modelled_ms"] / row["measured_ms"] - 1) for row in rows]
        print(f"{what}: median error {statistics.median(errors):.0%}, largest {max(errors):.0%}")
    reached = []
    for model, batch, steps, every, accuracy in (one.split(":") for one in options.until.split(",") if one):
        for rate in options.rates.split(","):
            for row in until(options, model, int(batch), int(steps), int(every), accuracy, rate):
                reached.append(row)
                print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    if reached:
        write(options.out / "time_to_accuracy.csv", reached)


if __name__ == "__main__":
    main()

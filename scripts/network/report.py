#!/usr/bin/env python3
"""Measures gradtool's MPI path over the shaped cluster and holds two things to it: the network model (three rates, two
sizes, four codecs), and what codecs gain on a ResNet-50-sized gradient at 1 Gbit/s beside a plain MPI program's all-reduce.
Writes README.md, validation.csv, speedups.csv and validation.png to reports/network; ends with 1 when a target is missed.

Usage: scripts/network/report.py [--gradtool build/release/bin/gradtool] [--out reports/network] [--work build/network] [--quick]
Needs root (network namespaces), Open MPI with mpicc, numpy, h5py, matplotlib. About 7 minutes on an otherwise idle machine;
the machine must be idle, because the hosts share its processors. --quick takes smaller sizes and proves nothing.
"""
import argparse
import csv
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CLUSTER = HERE.parent / "shaped-cluster.sh"
CODECS = ["qsgd:bits=4", "topk:ratio=0.01", "powersgd:rank=4"]  # beside none
TARGETS = {"powersgd": 5.0, "topk": 4.0, "qsgd": 2.0}  # times faster than none, at 1 Gbit/s
MODEL_ERROR, NONE_OVER_PLAIN = 0.15, 1.10
# The model is of a ring; left to itself Open MPI takes something slower for gradients of some megabytes.
RING = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "4"}


def run(command, **keys):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keys)
    if done.returncode != 0:
        sys.exit(f"report.py: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


class Cluster:
    """Four hosts at one rate, up for the length of a with statement."""
    def __init__(self, rate):
        self.rate = rate

    def __enter__(self):
        run([CLUSTER, "up", "--hosts", 4, "--rate", self.rate])
        return self

    def __exit__(self, *_):
        run([CLUSTER, "down"])

    def probe(self, program, elements, repeats, environment=None):
        return json.loads(run([CLUSTER, "run", "--", program, elements, repeats], env={**os.environ, **(environment or {})}))

    def bench(self, gradtool, capture, options, table, environment=None):
        run([CLUSTER, "run", "--", gradtool, "bench", capture, "--comm", "mpi", "--granularity", "bucket:25MB",
             *[word for codec in CODECS for word in ("--codec", codec)], *options, "--csv", table],
            env={**os.environ, **(environment or {})})
        with open(table) as file:
            return [row for row in csv.DictReader(file) if row["tensor"] == "all" and row["codec"] != "noop"]


def milliseconds(row, *phases):
    return sum(float(row[f"{phase}_us_median"] or 0.0) for phase in phases) / 1e3


def validate(options, program, captures):
    """One record for each rate, size and codec: what was measured, what the model says."""
    records = []
    for rate in options.rates:
        with Cluster(rate) as cluster:
            probe = cluster.probe(program, 1 << 18, 3)
            network = f"link:alpha={probe['alpha_us']:.3f}us,beta={probe['beta_bytes_per_s'] / 1e9:.6f}GBps"
            for name, capture in captures.items():
                rows = cluster.bench(options.gradtool, capture, ["--timing", "isolated", "-n", options.samples,
                                                                 "--network", network], options.work / "validation.csv", RING)
                rows = [row for row in rows if row["aggregation"] != "alltoall"]  # which bench also tries
                measured = {row["codec"]: row for row in rows if row["time_source"] == "measured"}
                for row in rows:
                    if row["time_source"] != "modelled":
                        continue
                    real = measured[row["codec"]]
                    record = {"rate": rate, "alpha_us": probe["alpha_us"], "beta_bytes_per_s": probe["beta_bytes_per_s"],
                              "size": name, "elements": int(real["elements"]), "codec": real["codec"], "params": real["params"],
                              "wire_bytes_per_rank": float(real["wire_bytes_per_rank"]),
                              "measured_comm_ms": milliseconds(real, "comm"), "modelled_comm_ms": milliseconds(row, "comm"),
                              "measured_step_ms": milliseconds(real, "encode", "comm", "decode"),
                              "modelled_step_ms": milliseconds(row, "encode", "comm", "decode")}
                    for what in ("comm", "step"):
                        record[f"{what}_error"] = record[f"modelled_{what}_ms"] / record[f"measured_{what}_ms"] - 1.0
                    records.append(record)
                    print(f"{rate} {name} {record['codec']}: step {record['measured_step_ms']:.1f} ms, "
                          f"modelled {record['modelled_step_ms']:.1f}", file=sys.stderr)
    return records


def speedups(options, program, capture, elements):
    with Cluster("1gbit") as cluster:
        before = cluster.probe(program, elements, 5)
        ring = cluster.probe(program, elements, 5, RING)
        rows = cluster.bench(options.gradtool, capture, ["--timing", "concurrent", "-n", options.samples],
                             options.work / "speedups.csv")
        after = cluster.probe(program, elements, 5)
    plain = min(before["allreduce_us"], after["allreduce_us"]) / 1e3
    fastest = min(before["allreduce_us_min"], after["allreduce_us_min"]) / 1e3
    none = next(milliseconds(row, "total") for row in rows if row["codec"] == "none")

    def program_row(name, median, smallest):
        return {"codec": name, "params": "", "total_ms": median, "total_ms_min": smallest, "times_faster_than_none": none / median,
                "times_faster_than_ring": ring["allreduce_us"] / 1e3 / median, "nmse": ""}
    records = [program_row("MPI_Allreduce alone", plain, fastest),
               program_row("MPI_Allreduce alone, its ring", ring["allreduce_us"] / 1e3, ring["allreduce_us_min"] / 1e3)]
    for row in rows:
        records.append({"codec": row["codec"], "params": row["params"], "total_ms": milliseconds(row, "total"),
                        "total_ms_min": float(row["total_us_min"]) / 1e3,
                        "times_faster_than_none": none / milliseconds(row, "total"),
                        "times_faster_than_ring": ring["allreduce_us"] / 1e3 / milliseconds(row, "total"),
                        "nmse": float(row["nmse"])})
    return records


def write_csv(path, records):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, records[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def plot(path, records):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(5.2, 4.6))
    ends = [f(min(r["measured_step_ms"], r["modelled_step_ms"]) if f is min else
              max(r["measured_step_ms"], r["modelled_step_ms"]) for r in records) for f in (min, max)]
    ends = [ends[0] / 1.5, ends[1] * 1.5]
    axes.fill_between(ends, [e * 0.85 for e in ends], [e * 1.15 for e in ends], color="0.88", label="within 15 %")
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    markers = dict(zip(sorted({r["size"] for r in records}), "os"))
    colours = dict(zip(["none", "qsgd", "topk", "powersgd"], ["#222222", "#d95f02", "#1b9e77", "#7570b3"]))
    for record in records:
        axes.plot(record["measured_step_ms"], record["modelled_step_ms"], markers[record["size"]], markersize=5,
                  color=colours[record["codec"]])
    for codec, colour in colours.items():
        axes.plot([], [], "o", color=colour, label=codec)
    for size, marker in markers.items():
        axes.plot([], [], marker, color="0.5", fillstyle="none", label=size)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, ms a step", ylabel="modelled, ms a step",
             title="Encode + collectives + decode, 4 hosts")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    mpi = run(["mpirun", "--version"]).splitlines()[0]
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}, {mpi}"


def readme(options, records, gains):
    commit = run(["git", "-C", HERE, "rev-parse", "--short=12", "HEAD"]).strip()
    medians = {what: statistics.median(abs(r[f"{what}_error"]) for r in records) for what in ("comm", "step")}
    lines = ["# The MPI path over a shaped network: what is measured, what the model says", "",
             f"Commit {commit}; {machine()}. Command: `scripts/network/report.py`. Four network namespaces joined by a bridge are "
             "the hosts (`scripts/shaped-cluster.sh`); they share the machine's processors and memory, so only what the network "
             "costs is like that of four machines. Values are synthetic (`synthetic_capture.py`): read no errors off them.", ""]
    if options.quick:
        lines += ["**Made with --quick: sizes too small to say anything.**", ""]
    lines += ["## The model", "",
              "alpha (all ranks send 8 bytes to the next one at once) and beta (the same with 4 MiB) come from a plain MPI "
              "program, `mpi_probe.c`, run on the same cluster just before. The rest is counted: which collectives a codec calls, "
              "with how many bytes. Step: isolated encode + collectives + decode, medians.", "",
              f"Median error over {len(records)} cases: **{100 * medians['comm']:.1f} % of the collectives**, "
              f"{100 * medians['step']:.1f} % of the step, in which encode and decode stand on both sides (to reach: "
              f"{100 * MODEL_ERROR:.0f} %).", "",
              "![modelled against measured](validation.png)", "",
              "| rate | link, MB/s | gradient | codec | collectives measured, ms | modelled | error | step measured, ms | modelled | error |",
              "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in records:
        lines.append(f"| {r['rate']} | {r['beta_bytes_per_s'] / 1e6:.1f} | {r['size']} | {r['codec']} | {r['measured_comm_ms']:.2f} | "
                     f"{r['modelled_comm_ms']:.2f} | {100 * r['comm_error']:+.0f} % | {r['measured_step_ms']:.2f} | "
                     f"{r['modelled_step_ms']:.2f} | {100 * r['step_error']:+.0f} % |")
    worst = max(records, key=lambda r: abs(r["step_error"]))
    lines += ["", f"Furthest off: {worst['codec']} on {worst['size']} at {worst['rate']}, {100 * worst['step_error']:+.0f} % of the "
              "step. Two things the model leaves out: a link lets half a millisecond's worth of bytes (at least 16 KiB) pass at once "
              "after a pause, so collectives of a few kilobytes are faster than modelled; and the ranks of all hosts share "
              f"{os.cpu_count()} cores, which adds their sums and copies to the collectives of large gradients on fast links. `none` is "
              "Open MPI's ring here (chosen by its MCA parameter); below it is what the library takes by itself.", ""]
    plain, none = gains[0], next(g for g in gains if g["codec"] == "none")
    lines += ["## What codecs gain at 1 Gbit/s", "",
              f"{gains_elements(options)} elements, 4 ranks at once (`--timing concurrent`, `--granularity bucket:25MB`), everything counted. "
              f"`none` takes {none['total_ms'] / plain['total_ms']:.2f} times as long as `MPI_Allreduce` of the whole gradient in a plain MPI "
              "program (to reach: at most 1.10); its own time includes the division by the number of ranks. What Open MPI takes by "
              "itself is not its fastest for this size, so its ring stands beside it, by which codecs are judged more severely.", "",
              "| | ms a step | fastest | times faster than none | than the ring | than none, to reach |",
              "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for gain in gains:
        name = gain["codec"] + (f":{gain['params']}" if gain["params"] else "")
        target = TARGETS.get(gain["codec"], "")
        lines.append(f"| {name} | {gain['total_ms']:.0f} | {gain['total_ms_min']:.0f} | {gain['times_faster_than_none']:.2f} | "
                     f"{gain['times_faster_than_ring']:.2f} | {target} |")
    return "\n".join(lines) + "\n"


def misses(records, gains):
    """Targets that were not reached, a sentence each."""
    median = statistics.median(abs(r["comm_error"]) for r in records)
    found = []
    if not math.isfinite(median) or median > MODEL_ERROR:
        found.append(f"the model's median error is {100 * median:.1f} % of the collectives, above {100 * MODEL_ERROR:.0f} %")
    plain, none = gains[0]["total_ms"], next(g["total_ms"] for g in gains if g["codec"] == "none")
    if none > NONE_OVER_PLAIN * plain:
        found.append(f"none takes {none / plain:.2f} times a plain MPI program's all-reduce")
    for gain in gains:
        target = TARGETS.get(gain["codec"], 0.0)
        if gain["times_faster_than_none"] < target:
            found.append(f"{gain['codec']} is {gain['times_faster_than_none']:.2f} times faster than none, not {target:g}")
    return found


def gains_elements(options):
    return "464 154" if options.quick else "25 557 032"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--gradtool", type=pathlib.Path, default=HERE.parents[1] / "build/release/bin/gradtool")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parents[1] / "reports/network")
    parser.add_argument("--work", type=pathlib.Path, default=HERE.parents[1] / "build/network")
    parser.add_argument("--rates", default="200mbit,500mbit,1gbit")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.rates = options.rates.split(",")
    options.gradtool = options.gradtool.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    program = (options.work / "mpi_probe").resolve()
    run(["mpicc", "-O2", "-o", program, HERE / "mpi_probe.c"])
    captures = {}
    for size in ["resnet32"] if options.quick else ["resnet32", "resnet50"]:
        captures[size] = (options.work / f"{size}.h5").resolve()
        if not captures[size].exists():
            run([sys.executable, HERE / "synthetic_capture.py", captures[size], "--model", size])
    gains = speedups(options, program, captures["resnet32" if options.quick else "resnet50"],
                     int(gains_elements(options).replace(" ", "")))
    records = validate(options, program, captures)
    write_csv(options.out / "validation.csv", records)
    write_csv(options.out / "speedups.csv", gains)
    plot(options.out / "validation.png", records)
    (options.out / "README.md").write_text(readme(options, records, gains))
    print(f"wrote {options.out}/README.md, validation.csv, speedups.csv, validation.png")
    missed = misses(records, gains)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())

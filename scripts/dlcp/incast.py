#!/usr/bin/env python3
"""Incast on the shaped cluster: TCP (MPI) against the bounded-loss transport, on the same links. Needs root; some ten minutes.

    incast.py --program build/release/bin/gradtool_incast [--out reports/dlcp] [--rate 200mbit] [--capture FILE] [--quick]

Every host's link has one rate. "switch": a port of the switch holds 64 kB of droppable packets and 192 kB of others, and drops what
does not fit. "losing": 1 % of all packets are lost by chance, whatever they are. Writes incast.csv (a row for each program, network and
number of senders), incast_samples.csv (every iteration) and incast.md.
"""
import argparse
import csv
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "scripts/shaped-cluster.sh"
NETWORKS = {"switch": ["--queue", "64kb", "--classes", "on"], "losing": ["--loss", "1%"]}
COMMS = ("mpi", "udp", "udp:loss=0.01", "udp:loss=0.03", "udp:loss=0.1", "udp:loss=0.1,important=0")


def run(*command, **keywords):
    return subprocess.run([str(word) for word in command], text=True, **keywords)


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def bits_per_second(rate):
    for unit, scale in (("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)):
        if rate.endswith(unit):
            return float(rate[:-len(unit)]) * scale
    sys.exit(f"incast.py: --rate {rate} is not valid; write it as tc does, such as 200mbit")


def measure(options, network, senders, scratch):
    up = run(CLUSTER, "up", "--hosts", senders + 1, "--rate", options.rate, *NETWORKS[network], stderr=subprocess.PIPE)
    if up.returncode != 0:
        sys.exit(f"incast.py: no cluster: {up.stderr.strip()}")
    found, samples = [], []
    try:
        # Twice, forward and backward, so that what else the machine does hits all alike.
        for order, comms in enumerate((COMMS, COMMS[::-1])):
            for comm in comms:
                paths = [os.path.join(scratch, name) for name in ("summary.csv", "samples.csv")]
                what = ["--capture", options.capture] if options.capture else []
                done = run(CLUSTER, "run", "--", options.program, "--comm", comm, "--bytes", options.bytes, *what, "-n",
                           20 if options.quick else 100, "-w", 5, "--csv", paths[0], "--samples", paths[1], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, timeout=900)
                if done.returncode != 0:
                    sys.exit(f"incast.py: {comm} on {network}: {done.stderr.strip()}")
                found += [{"network": network, "half": order, **row} for row in rows_of(paths[0])]
                samples += [{"network": network, "half": order, **row} for row in rows_of(paths[1])]
                print(network, senders, comm, found[-1]["mean_ms"], found[-1]["p99_ms"], file=sys.stderr, flush=True)
    finally:
        run(CLUSTER, "down")
    return found, samples


def quantile(values, share):
    values = sorted(values)
    return values[max(0, -(-int(share * 1000) * len(values) // 1000) - 1)]


def pool(summaries, samples, floor_rate):
    """One row for each network, number of senders and program: both halves together."""
    table = []
    for key in dict.fromkeys((row["network"], row["senders"], row["comm"]) for row in summaries):
        mine = [row for row in samples if (row["network"], row["senders"], row["comm"]) == key]
        halves = [row for row in summaries if (row["network"], row["senders"], row["comm"]) == key]
        times = [float(row["ms"]) for row in mine]
        floor = sum(8e3 * float(row["bytes"]) * int(key[1]) / floor_rate for row in mine) / len(mine)

        def mean(column):
            values = [float(row[column]) for row in halves if row[column] != ""]
            return sum(values) / len(values) if values else ""
        table.append({"network": key[0], "senders": key[1], "comm": key[2], "iterations": len(times), "floor_ms": round(floor, 3),
                      "mean_ms": round(sum(times) / len(times), 3), "p50_ms": quantile(times, 0.5), "p99_ms": quantile(times, 0.99),
                      "max_ms": max(times), "delivered_least": min(float(row["delivered_least"]) for row in halves),
                      "lost_first": mean("lost_first"), "lost_important": mean("lost_important"), "lost_droppable": mean("lost_droppable"),
                      "sender_cpu_s_per_gb": mean("sender_cpu_s_per_gb"), "server_cpu_s_per_gb": mean("server_cpu_s_per_gb")})
    return table


def write(path, rows):
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def check(table):
    """Checks promises that hold whatever the times are."""
    for row in table:
        loss = float(row["comm"].partition("loss=")[2].partition(",")[0] or 0) if row["comm"].startswith("udp") else 0.0
        assert row["delivered_least"] >= 1.0 - loss - 1e-12, row
        assert row["mean_ms"] >= 0.95 * (1.0 - loss) * row["floor_ms"], row  # nothing is faster than the link


def number(value, digits=3):
    return "" if value == "" else f"{float(value):.{digits}g}"


def text(table, options):
    lines = ["| network | senders | over | mean ms | p50 | p99 | p99 / MPI's | delivered at least | lost at first: important | droppable | "
             "CPU s/GB sender | rank 0 |", "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in table:
        base = next(other for other in table if (other["network"], other["senders"], other["comm"]) == (row["network"], row["senders"], "mpi"))
        lines.append(f"| {row['network']} | {row['senders']} | {row['comm']} | {number(row['mean_ms'])} | {number(row['p50_ms'])} | "
                     f"{number(row['p99_ms'])} | {row['p99_ms'] / base['p99_ms']:.2f} | {number(row['delivered_least'], 4)} | "
                     f"{number(row['lost_important'], 2)} | {number(row['lost_droppable'], 2)} | {number(row['sender_cpu_s_per_gb'])} | "
                     f"{number(row['server_cpu_s_per_gb'])} |")
    floors = ", ".join(sorted({f"{row['floor_ms']:.1f} ms for {row['senders']} senders" for row in table}))
    what = f"tensors of {os.path.basename(options.capture)}" if options.capture else f"{options.bytes} a sender"
    return "\n".join([f"Links of {options.rate}, {what}. The link alone takes {floors}.", "", *lines, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--out", default=str(ROOT / "reports/dlcp"))
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--bytes", default="256KB")
    parser.add_argument("--capture", help="gradient file: its tensors of --bytes and more instead of random values")
    parser.add_argument("--senders", default="4,8")
    parser.add_argument("--quick", action="store_true", help="few iterations, to try the script")
    options = parser.parse_args()
    options.program = os.path.abspath(options.program)
    if options.capture:
        options.capture = os.path.abspath(options.capture)
    rate = bits_per_second(options.rate)
    summaries, samples = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for network in NETWORKS:
            for senders in map(int, options.senders.split(",")):
                found, more = measure(options, network, senders, scratch)
                summaries += found
                samples += more
    table = pool(summaries, samples, rate)
    check(table)
    os.makedirs(options.out, exist_ok=True)
    write(os.path.join(options.out, "incast.csv"), table)
    write(os.path.join(options.out, "incast_samples.csv"), samples)
    with open(os.path.join(options.out, "incast.md"), "w") as file:
        file.write(text(table, options))
    print(text(table, options))


if __name__ == "__main__":
    main()

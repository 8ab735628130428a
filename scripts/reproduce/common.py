"""Functions that the scripts of this folder share: running `gradtool bench` as a user would, reading its table, cutting captures to fewer
steps, the network model of docs/network-model.md, and writing a report.
"""
import argparse
import csv
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CLUSTER = os.path.join(ROOT, "scripts", "shaped-cluster.sh")
# Open MPI's ring, with which the papers compare; left to itself the library may take an algorithm that sends more.
RING = ["env", "OMPI_MCA_coll_tuned_use_dynamic_rules=1", "OMPI_MCA_coll_tuned_allreduce_algorithm=4"]


def arguments(description, capture):
    """The options that every script takes. capture: the name that captures.sh gave to the file it replays."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--gradtool", default="build/release/bin/gradtool", help="program to drive")
    parser.add_argument("--capture", default=f"build/reproduce/{capture}.h5", help="gradient file, from captures.sh")
    parser.add_argument("--out", default="reports/reproduce", help="folder for the report")
    parser.add_argument("--work", default="build/reproduce", help="folder for what is kept between runs and not committed")
    parser.add_argument("--quick", action="store_true", help="few timed steps: bytes and errors are exact all the same, times are not")
    parser.add_argument("--no-cluster", action="store_true", help="leave out what is measured on the shaped cluster (as without root)")
    parser.add_argument("--note", default="", help="a sentence for the head of the report, such as under what load it was measured")
    options = parser.parse_args()
    if not os.access(options.gradtool, os.X_OK):
        parser.error(f"no program at {options.gradtool}; build it or name it with --gradtool")
    if not os.path.exists(options.capture):
        parser.error(f"no capture at {options.capture}; scripts/reproduce/captures.sh makes it")
    os.makedirs(options.out, exist_ok=True)
    os.makedirs(options.work, exist_ok=True)
    options.cluster = os.geteuid() == 0 and not options.no_cluster
    return options


def value(text):
    """A cell of the table: a number where it is one, None where it is empty."""
    try:
        return float(text) if text != "" else None
    except ValueError:
        return text


def read_table(path):
    """The rows that cover all tensors, cells as value() reads them."""
    with open(path, newline="") as file:
        rows = [{key: value(text) for key, text in row.items()} for row in csv.DictReader(file)]
    return [row for row in rows if row["tensor"] == "all"]


def pick(rows, codec, **cells):
    """The one row of a codec whose cells are these. codec: a name, or a name with parameters, all of which the row must have. Of two
    ways that bench has tried it is the gather, which the papers take, unless `aggregation` is among the cells."""
    name, _, params = codec.partition(":")
    wanted = [param for param in params.split(",") if param]

    def fits(row):
        return (row["codec"] == name and set(wanted) <= set((row["params"] or "").split(","))
                and all(row[key] == cell for key, cell in cells.items()))
    found = [row for row in rows if fits(row)]
    if len({row["aggregation"] for row in found}) > 1:
        found = [row for row in found if row["aggregation"] != "alltoall"]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows are {codec} with {cells}, not one")
    if found[0]["status"] != "ok":
        raise RuntimeError(f"{codec}: {found[0]['status']}: {found[0]['message']}")
    return found[0]


def bench(options, codecs, extra=(), capture=None, cluster=None, record=False):
    """Runs `gradtool bench`. cluster: rate of the shaped cluster's links, such as 1gbit; 4 hosts, one MPI rank each.
    Returns the rows of read_table(), and with record=True the full record's rows instead, samples included."""
    with tempfile.TemporaryDirectory() as folder:
        table, full = os.path.join(folder, "bench.csv"), os.path.join(folder, "bench.json")
        command = [os.path.abspath(options.gradtool), "bench", os.path.abspath(capture or options.capture)]
        for codec in codecs:
            command += ["--codec", codec]
        if "--granularity" not in extra:
            command += ["--granularity", "tensor"]  # as the papers' own tables
        command += [*map(str, extra), "--csv", table, "--json", full]
        if cluster:
            command = [CLUSTER, "with", "--hosts", "4", "--rate", cluster, "--", *RING, *command, "--comm", "mpi"]
        print("+", shlex.join(command), file=sys.stderr, flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"status {done.returncode} from: {shlex.join(command)}\n{done.stdout}{done.stderr}")
        if not record:
            return read_table(table)
        with open(full) as file:
            return json.load(file)["rows"]


def cut(capture, out, first, count):
    """A copy of some steps of a capture, for measurements that need few of them."""
    import h5py
    with h5py.File(capture) as source, h5py.File(out + ".part", "w") as target:
        steps = len(source["steps/iteration"])

        def copy(name, thing):
            if isinstance(thing, h5py.Dataset):
                part = thing[first:first + count] if thing.ndim and thing.shape[0] == steps else thing[()]
                target.create_dataset(name, data=part)
            else:
                target.require_group(name)
            for key, attribute in thing.attrs.items():
                target[name].attrs[key] = attribute
        source.visititems(copy)
        for key, attribute in source.attrs.items():
            target.attrs[key] = attribute
    os.replace(out + ".part", out)
    return out


def crossing(points, level):
    """Returns the x at which a curve through points (x, y), x ascending, last comes to a level, linear between points; None: nowhere."""
    for (x0, y0), (x1, y1) in reversed(list(zip(points, points[1:]))):
        if (y0 - level) * (y1 - level) <= 0 and y0 != y1:
            return x0 + (level - y0) / (y1 - y0) * (x1 - x0)
    return None


def highest(speedup, target):
    """The rate in Mbit/s, from 0.1 to 10^6, at which a falling function of it comes to the target; None where it is below everywhere."""
    low, high = 0.1, 1e6
    if speedup(low) < target:
        return None
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if speedup(middle) >= target else (low, middle)
    return low


def all_reduce_seconds(size, ranks, alpha, beta):
    """docs/network-model.md: recursive halving and doubling, doubling of the whole vector, or an all-gather of whole vectors. size in
    bytes, beta in bytes a second."""
    steps = math.ceil(math.log2(ranks))
    whole = steps + (ranks & (ranks - 1) != 0)
    return min(2 * steps * alpha + 2 * (ranks - 1) / ranks * size / beta, whole * (alpha + size / beta), steps * alpha + (ranks - 1) * size / beta)


def processor():
    with open("/proc/cpuinfo") as info:
        return next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.machine())


def number(x, digits=3):
    """For a table cell: three significant digits, no exponent for what people read; empty for what was not measured."""
    if x is None:
        return ""
    if isinstance(x, str):
        return x
    if x != 0 and abs(x) < 1e-3:
        return f"{x:.{digits - 1}e}"
    return f"{x:,.0f}" if abs(x) >= 10 ** (digits - 1) else f"{x:.{digits}g}"


def table(header, rows):
    """A Markdown table, without the columns in which nothing stands."""
    used = [i for i in range(len(header)) if any(row[i] not in (None, "") for row in rows)]
    header, rows = [header[i] for i in used], [[row[i] for i in used] for row in rows]
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    return "\n".join(lines + ["| " + " | ".join(number(cell) for cell in row) + " |" for row in rows])


def write_report(options, name, title, claim, paragraphs, commands=()):
    """reports/reproduce/NAME.md: the paper's claim, how to repeat it, where it was measured, then the paragraphs."""
    version = subprocess.run([options.gradtool, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    shown = f"scripts/reproduce/{name}.py" + (" --quick" if options.quick else "") + (" --no-cluster" if options.no_cluster else "")
    caution = "Few steps were timed (`--quick`): bytes and errors are exact, times are not.\n\n" if options.quick else ""
    note = f"**{options.note}**\n\n" if options.note else ""
    text = f"# {title}\n\n{note}{caution}**The claim.** {claim}\n\n```sh\n{shown}\n" + "".join(f"{c}\n" for c in commands)
    text += f"```\n\n{version}; {processor()}, {os.cpu_count()} processors.\n\n" + "\n\n".join(paragraphs) + "\n"
    path = os.path.join(options.out, name + ".md")
    with open(path, "w") as file:
        file.write(text)
    print("wrote", path, file=sys.stderr)


def save_plot(options, name, figure):
    """reports/reproduce/NAME.png, and the Markdown that shows it."""
    figure.tight_layout()
    figure.savefig(os.path.join(options.out, name + ".png"), dpi=80, metadata={"Software": None})
    return f"![{name}]({name}.png)"


def axes(width=7.0, height=4.0, panels=1):
    """A figure that needs no display."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot
    return matplotlib.pyplot.subplots(1, panels, figsize=(width, height))

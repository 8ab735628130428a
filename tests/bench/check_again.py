"""The command beneath the advice (`Again:`) has every option that was given and that changes what it measures, and it measures the same.

Every option of bench is in one of two lists, so that whoever adds one has to say which.

Usage: check_again.py GRADTOOL SOURCE_DIR [MPIEXEC]
"""
import csv
import io
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MPIEXEC = sys.argv[3] if len(sys.argv) > 3 else ""
SAMPLE = ROOT / "datasets/lenet5-fashion-mnist.h5"
TIMED = ROOT / "datasets/llama-shakespeare.h5"  # of four workers, and says how long an iteration computes

# Options that the command does not have, and why the row that it is about stays the same without them.
LEFT_OUT = {
    "--help": "it measures nothing",
    "--config": "its options are given one by one",
    "--synthetic": "sizes get no such command: their advice is a table",
    "--minbytes": "as --synthetic", "--maxbytes": "as --synthetic", "--stepfactor": "as --synthetic", "--stepbytes": "as --synthetic",
    "--gpus": "it is --ranks with --comm nccl",
    "--pipeline": "it is about concurrent rows, and the advice goes by isolated ones",
    "--comm-timeout": "it says when to give up",
    "--seeds": "the advice is of the first, which the command has", "--received": "it adds rows", "--received-bytes": "as --received", "--update-error": "it adds columns",
    "--per-tensor": "it adds rows", "--reconstruction": "it writes a file", "--payloads": "it writes a file", "--csv": "it writes a file",
    "--steps-csv": "it writes a file", "--json": "it writes a file", "--markdown": "it is about how text looks", "--color": "as --markdown",
    "--baseline": "a comparison of programs gives no advice", "--cycles": "as --baseline",
}
# The command says these of the one row that it is about, whether they were given or not.
OF_THE_ROW = ["--codec", "--granularity", "--network", "--nodes", "--timing", "--advise"]
# Options that go together, as they are given and as they have to be told again.
GIVEN = [
    ["--seed", "3", "--threads", "1", "--ranks", "2", "--iters", "2", "--warmup-iters", "1", "--hot", "--layers", "fc|conv2", "--baseline-dtype", "bf16",
     "--check", "0", "--reduce", "alltoall", "--all-reduce", "doubling", "--library", "gloo", "--compute-ms", "5.123456789", "--overlap", "none",
     "--max-nmse", "0.31234567"],
    ["--min-samples", "3", "--rounds", "2", "--max-noise", "0.512345678", "--timeout", "0.0312345678", "--op", "all-gather", "--values", "own",
     "--codec-speed", "floor:50"],
    ["--levels", "node=2", "--codec-inner", "bf16", "--ranks", "4", "--iters", "7", "--rounds", "3", "--compute-ms", "none"],
    ["--iters", "1", "--op", "reduce-scatter", "--compute-ms", "captured", "--steps", "11:150"],
    ["--trained", "TRIAL", "--iters", "1"],
]
# Options of processes, where there is MPI; those of GPUs are in tests/bench/advice_test.cpp.
BY_PROCESSES = [["--comm", "mpi", "--iters", "1"], ["--comm", "udp:loss=0,rate=1Gbps", "--iters", "1", "--seed", "5"]]
BY_DEVICE = ["--device"]

# Columns that do not depend on how fast the machine is at the moment.
SAME = ["status", "codec", "params", "aggregation", "granularity", "elements", "ranks", "comm", "device", "threads", "dtype", "seed", "network", "timing",
        "compute_ms", "compute_low_ms", "overlap", "op", "levels", "codec_inner", "library", "quantity", "baseline_dtype", "raw_bytes", "payload_bytes",
        "wire_bytes_per_rank", "nmse", "cumulative_nmse", "codec_nmse", "messages", "codec_times"]


def options_of(help_text):
    """The long names of all options; of one that has two, the first."""
    return {re.search(r"--[a-z][a-z-]*", line)[0] for line in help_text.splitlines() if re.match(r"  -", line)}


def told(arguments):
    """Options of a command line with their values, several of one name in order."""
    found, name = {}, None
    for word in arguments:
        if re.match(r"--?[a-z]", word):
            name = word
            found.setdefault(name, [])
        elif name:
            found[name].append(word)
    return found


def rows_and_command(command, table):
    """The modelled rows by codec, with their samples of the isolated row, and the command that the advice gives."""
    done = subprocess.run([*command, "--csv", table], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=280, env=ENVIRONMENT)
    assert done.returncode == 0, (command, done.returncode, done.stderr)
    again = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith("  Again: ")]
    assert len(again) == 1, (command, done.stdout)
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    samples = {row["codec"]: row["samples"] for row in rows if row["time_source"] == "measured" and row["timing"] == "isolated"}
    return {row["codec"]: row for row in rows if row["time_source"] == "modelled"}, samples, again[0]


def write_trial(path, params):
    """A record of gradtool.trial in which the codec learns, so that --trained lets the advice take it."""
    arm = {"codec": "qsgd:" + params, "verdict": "learns", "reason": "", "worse_by": 0.0, "low": -0.1, "high": 0.1, "same_as_none": 1.0, "lr_factor": 1.0}
    path.write_text(json.dumps({"format": "gradtool.trial", "schema_version": 1, "model": "LeNet", "elements": 61706, "arms": [arm],
                                "settings": {"judge": "loss", "scheme": "auto", "workers": 4, "steps": 300}}))


def processes():
    """Returns what starts processes, the launcher's name first; an empty list without MPI."""
    listed = subprocess.run([GRADTOOL, "list", "comm", "--csv", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout
    if not MPIEXEC or not any(row["name"] == "mpi" and row["available"] == "true" for row in csv.DictReader(io.StringIO(listed))):
        return []
    version = subprocess.run([MPIEXEC, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [MPIEXEC, *(["--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else [])]


def check(given, folder, launcher=()):
    table, codec = folder / "bench.csv", "qsgd:bits=4"
    base = [*launcher, *(["-n", "2"] if launcher else []), GRADTOOL, "bench", str(TIMED if "--levels" in given or "captured" in given else SAMPLE), "--codec", codec, "--timing", "isolated", "--network", "slow:alpha=1us,beta=1MBps",
            "--nodes", "8", "--advise"]
    if "--max-nmse" not in given and "--trained" not in given:
        base += ["--max-nmse", "0.9"]
    first, samples, again = rows_and_command([*base, *given], table)
    words = shlex.split(again)
    start = words.index("gradtool")
    assert bool(start) == bool(launcher), again
    known = told(words[start + 2:])
    for name, values in told(given).items():
        assert name in known, f"{name} was given, and is not in: {again}"
        same = [math.isclose(float(a), float(b), rel_tol=1e-12) if re.fullmatch(r"[0-9.]+", a) else a == b for a, b in zip(values, known[name])]
        assert len(known[name]) == len(values) and all(same), f"{name} was {values}, and is {known[name]} in: {again}"
    assert set(known) <= set(told([*base, *given])) | {"--reduce", "--granularity"}, again
    second, samples_again, again_again = rows_and_command([*launcher, *words[1:start], GRADTOOL, *words[start + 1:]], table)
    assert again_again == again, (again_again, again)
    for name in ("none", "qsgd"):
        for column in SAME:
            a, b = first[name][column], second[name][column]
            assert a == b, f"{column} of {name} was {a}, and is {b} with: {again}"
        if "--iters" in given:
            assert samples[name] == samples_again[name] == given[given.index("--iters") + 1], (samples, samples_again)
    return first


def check_lists(options):
    told_of = {name for given in GIVEN + BY_PROCESSES for name in given if name.startswith("--")} | set(OF_THE_ROW) | set(BY_DEVICE)
    assert not told_of & set(LEFT_OUT), told_of & set(LEFT_OUT)
    missing = options - told_of - set(LEFT_OUT)
    assert not missing, f"say of {sorted(missing)} whether the command beneath the advice must have them"
    assert told_of | set(LEFT_OUT) <= options, sorted((told_of | set(LEFT_OUT)) - options)


ENVIRONMENT = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
check_lists(options_of(subprocess.run([GRADTOOL, "bench", "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout))
with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name)
    for options in GIVEN:
        rows = check([str(place / "trial.json") if word == "TRIAL" else word for word in options], place)
        write_trial(place / "trial.json", rows["qsgd"]["params"])
    start_processes = processes()
    if start_processes:
        for options in BY_PROCESSES:
            check(options, place, start_processes)
print(f"{len(GIVEN) + (len(BY_PROCESSES) if start_processes else 0)} commands measured the same again")

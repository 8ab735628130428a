"""probe measures, writes a network, and bench takes it; what it refuses it refuses in a sentence.

Usage: check_probe.py GRADTOOL SOURCE_DIR threads
       check_probe.py GRADTOOL SOURCE_DIR mpi MPIEXEC      (77: built without MPI)
"""
import csv
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from waiting import until_interruptible  # noqa: E402

GRADTOOL, ROOT, WAY = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
MPIEXEC = sys.argv[4] if len(sys.argv) > 4 else ""
SAMPLE = str(ROOT / "datasets/lenet5-fashion-mnist.h5")
QUICK = ["-b", "64", "-e", "64K", "-f", "8", "-n", "5", "--rounds", "5"]
NAMES = ["pair", "sendrecv", "all_reduce", "all_reduce_ring", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]


def run(*arguments, launch=(), **keywords):
    done = subprocess.run([*launch, GRADTOOL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=600, **keywords)
    return done.returncode, done.stdout, done.stderr


def refused(status, word, *arguments, launch=()):
    code, out, err = run(*arguments, launch=launch)
    said = [line for line in err.splitlines() if line.startswith("gradtool: ")]
    assert code == status and len(said) == 1 and word in said[0] and out == "", (arguments, code, out[:200], err)


def check_file(path, ranks, comm, name):
    net = json.loads(path.read_text())
    assert (net["format"], net["schema_version"], net["name"], net["ranks"], net["comm"]) == ("gradtool.network", 1, name, ranks, comm)
    link = net["link"]
    for value in ("alpha_us", "beta_gbit_s", "contention"):
        assert 0 <= link[f"{value}_low"] <= link[value] <= link[f"{value}_high"], (value, link)
    fits = {fit["collective"]: fit for fit in net["fits"]}
    assert list(fits) == NAMES and link["beta_gbit_s"] == fits["pair"]["beta_gbit_s"] and link["alpha_us"] == fits["sendrecv"]["alpha_us"]
    assert abs(link["contention"] - fits["pair"]["beta_gbit_s"] / fits["sendrecv"]["beta_gbit_s"]) < 1e-4 * link["contention"]
    assert [pair["from"] for pair in net["pairs"]] == list(range(ranks if ranks > 2 else 1))
    # Whole words: a machine named "vm" is not named by the "KVM" of its processor.
    assert not re.search(rf"\b({re.escape(os.uname().nodename)}|hostname)\b", json.dumps(net)), net
    alpha, beta = link["alpha_us"], link["beta_gbit_s"] / link["contention"] * 1e3  # bits a microsecond
    assert [row["collective"] for row in net["rows"]] == [each for each in NAMES for _ in range(4)]
    for row in net["rows"]:
        p, size, time_us = row["ranks"], row["bytes"], row["time_us_median"]
        samples = sorted(row["samples_us"])
        assert len(samples) == row["samples"] == sum(row["round_samples"]) >= 5, row
        assert abs(samples[len(samples) // 2] - time_us) <= 1e-4 * time_us or len(samples) % 2 == 0, row
        assert abs(row["algbw_gbit_s"] - 8e-3 * size / time_us) <= 1e-9 * row["algbw_gbit_s"]
        factor = {"all_reduce": 2 * (p - 1) / p, "all_reduce_ring": 2 * (p - 1) / p, "pair": 1, "sendrecv": 1, "broadcast": 1}
        assert abs(row["busbw_gbit_s"] / row["algbw_gbit_s"] - factor.get(row["collective"], (p - 1) / p)) < 1e-9, row
        log = (p - 1).bit_length()
        modelled = {"sendrecv": alpha + 8 * size / beta, "broadcast": log * alpha + 8 * size / beta,
                    "all_reduce": min(2 * log * alpha + 2 * (p - 1) / p * 8 * size / beta, (log + (p & (p - 1) != 0)) * (alpha + 8 * size / beta),
                                      log * alpha + (p - 1) * 8 * size / beta),
                    "all_gather": log * alpha + (p - 1) / p * 8 * size / beta,
                    "reduce_scatter": log * alpha + (p - 1) / p * 8 * size / beta,
                    "all_to_all": alpha + (p - 1) / p * 8 * size / beta}
        expected = modelled.get(row["collective"].removesuffix("_ring"))
        assert expected is None or abs(row["modelled_us"] / expected - 1) < 1e-4, (row, expected)
        assert abs(row["modelled_us"] / time_us - 1 - row["modelled_off"]) < 1e-6


def modelled(network, *, launch=(), more=()):
    code, out, err = run("bench", SAMPLE, "--codec", "fp16", "-n", "1", "-w", "0", "--network", network, "--nodes", "4,32", "--csv", "-", *more,
                         launch=launch)
    assert code == 0, err
    return [row for row in csv.DictReader(io.StringIO(out)) if row["time_source"] == "modelled"]


def check_bench(path, name, **how):
    link = json.loads(path.read_text())["link"]
    text = f"{name}:alpha={link['alpha_us']:g}us,beta={link['beta_gbit_s']:g}Gbps,contention={link['contention']:g}"
    by_file, by_text = modelled(path, **how), modelled(text, **how)
    fit = next(fit for fit in json.loads(path.read_text())["fits"] if fit["collective"] == link["from"])
    for row in by_file:
        assert ("misfit=" in row["network"]) == (not fit["fits"]), (row["network"], fit)
    assert len(by_file) == len(by_text) == 6, by_file
    for a, b in zip(by_file, by_text):
        assert a["comm_us_median"] == b["comm_us_median"] and float(a["comm_us_median"] or 0) >= 0, (a, b)
        assert a["network"].startswith(f"{name}:alpha="), a["network"]
    assert any(float(row["comm_us_median"]) > 0 for row in by_file)


def check_threads(folder):
    code, out, err = run("probe", "--comm", "threads", "--ranks", "3", *QUICK, "-o", folder / "memory.json", "--csv", folder / "rows.csv")
    assert code == 0 and err.count("wrote ") == 2, (code, err)
    for word in ("The link: ", "contention ", "Pairs alone: ", "share one machine"):
        assert word in out, out
    assert max(map(len, out.splitlines())) <= 80, max(out.splitlines(), key=len)
    check_file(folder / "memory.json", 3, "threads", "memory")
    with open(folder / "rows.csv") as file:
        assert len(list(csv.DictReader(file))) == 32
    check_bench(folder / "memory.json", "memory")
    rows = modelled(f"{folder / 'memory.json'}:node=4,inner=nvlink")
    assert {row["ranks"] for row in rows} == {"16", "128"}, rows
    code, out, err = run("probe", "--comm", "threads", "--ranks", "2", *QUICK, "--collective", "all_reduce,broadcast", "--fit", "all_reduce",
                         "--name", "rack-7", "-o", "-")
    net = json.loads(out)
    assert code == 0 and net["name"] == "rack-7" and net["link"]["from"] == "all_reduce"
    assert [fit["collective"] for fit in net["fits"]] == ["pair", "all_reduce", "broadcast"], net["fits"]

    (folder / "bad.json").write_text('{"format": "gradtool.network"')
    for file, word in (("bad.json", "no valid JSON"), ("gone.json", "cannot be opened")):
        refused(3, word, "bench", SAMPLE, "--network", folder / file)
    refused(2, "same file", "bench", SAMPLE, "--network", folder / "memory.json", "--json", folder / "memory.json")
    for arguments, status, word in ((["--fit", "ring"], 2, "--fit"), (["--collective", "sendrcv"], 2, "did you mean 'sendrecv'?"),
                                    (["-b", "1M", "-e", "1K"], 2, "-b 1M"), (["-f", "1"], 2, "-f 1"), (["-e", "1024G"], 2, "-e 1024G"), (["-b", "8", "-e", "16"], 2, "sizes"),
                                    (["-b", "4", "-e", "12", "-f", "1.5", "--ranks", "4", "-n", "1"], 2, "larger -e"),
                                    (["--name", "a b"], 2, "--name"), (["--timeout", "0"], 2, "--timeout"),
                                    (["--ranks", "1"], 2, "--ranks"), (["-o", "/proc/x.json"], 4, "/proc/x.json"),
                                    (["-o", "a.json", "--csv", "a.json"], 2, "same file")):
        refused(status, word, "probe", "--comm", "threads", *arguments)
    process = subprocess.Popen([GRADTOOL, "probe", "--comm", "threads", "-n", "1000", "-o", folder / "stopped.json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_interruptible(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130 and err == "interrupted: nothing written\n" and out == "", (process.returncode, out, err)
    assert not (folder / "stopped.json").exists()


def check_mpi(folder):
    listed = run("list", "comm", "--csv", "-")[1]
    if not MPIEXEC or not any(r["name"] == "mpi" and r["available"] == "true" for r in csv.DictReader(io.StringIO(listed))):
        print("skipped: built without MPI")
        sys.exit(77)
    version = subprocess.run([MPIEXEC, "--version"], stdout=subprocess.PIPE, text=True).stdout
    more = ["--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else []
    for ranks in (2, 4):
        path = folder / f"net{ranks}.json"
        code, out, err = run("probe", *QUICK, "-o", path, launch=[MPIEXEC, "-n", str(ranks), *more])
        assert code == 0 and "share one machine" in out, (code, out, err)
        check_file(path, ranks, "mpi", f"net{ranks}")
    two = [MPIEXEC, "-n", "2", *more]
    check_bench(path, "net4", launch=two, more=["--comm", "mpi"])
    refused(2, "mpirun -n 4", "probe", "--comm", "mpi")
    refused(2, "add --comm mpi", "probe", "--comm", "threads", launch=two)
    refused(2, "leave --ranks out", "probe", "--ranks", "2", launch=two)
    done = subprocess.run([MPIEXEC, *more, "-n", "1", GRADTOOL, "probe", *QUICK, ":", "-n", "1", GRADTOOL, "probe", *QUICK, "-w", "7"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
    said = [line for line in done.stderr.splitlines() if line.startswith("gradtool: ")]
    assert done.returncode == 2 and len(said) == 1 and "--warmup-iters" in said[0] and "rank 1" in said[0], (done.returncode, done.stderr)


with tempfile.TemporaryDirectory() as scratch:
    (check_mpi if WAY == "mpi" else check_threads)(pathlib.Path(scratch).resolve())
print(f"probe measures, with {WAY}, and bench takes it")

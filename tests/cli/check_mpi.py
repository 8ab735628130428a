"""bench under mpirun gives the numbers that threads give. Usage: check_mpi.py GRADTOOL SOURCE_DIR MPIEXEC"""
import concurrent.futures
import csv
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np

gradtool, root = sys.argv[1], pathlib.Path(sys.argv[2])
mpiexec = sys.argv[3] if len(sys.argv) > 3 else ""  # CMake drops an empty argument
listed = subprocess.run([gradtool, "list", "comm", "--csv", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout
if not mpiexec or not any(r["name"] == "mpi" and r["available"] == "true" for r in csv.DictReader(io.StringIO(listed))):
    print("skipped: built without MPI")
    sys.exit(77)
sample = str(root / "datasets/lenet5-fashion-mnist.h5")


def rows(launch, *flags):
    out = subprocess.run([*launch, gradtool, "bench", sample, "--csv", "-", "-n", "1", "-w", "0", "--threads", "1", *flags],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return list(csv.DictReader(io.StringIO(out)))


version = subprocess.run([mpiexec, "--version"], stdout=subprocess.PIPE, text=True).stdout
more = ["--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else []


def compare(*flags):
    threads = rows([], *flags)
    mpi = rows([mpiexec, "-n", "2", *more], "--comm", "mpi", *flags)
    assert len(threads) == len(mpi) > 2
    for a, b in zip(threads, mpi):
        for column in ("codec", "params", "timing", "pipeline", "status", "ranks", "nmse", "cosine", "cumulative_nmse", "payload_bytes",
                       "wire_bytes_per_rank"):
            assert a[column] == b[column], f"{a['codec']} {column}: {a[column]} with threads, {b[column]} with MPI"
        assert b["comm"] == "mpi"


HANGS = 100  # seconds; below the two minutes after which a rank that waits gives up, so that an error that ends nobody else is seen


def fails_once(status, word, *flags):
    """Every process meets the error; one says it, and the job ends at once."""
    done = subprocess.run([mpiexec, "-n", "2", *more, gradtool, "bench", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, timeout=HANGS)
    said = [line for line in done.stderr.splitlines() if line.startswith("gradtool: ")]
    assert done.returncode == status and len(said) == 1 and word in said[0], (flags, done.returncode, done.stderr)


sys.path.append(str(root / "tests/io"))
import conforming  # noqa: E402


def differ(mine, others, *words):
    """Ranks 0 and 1 run `mine`, rank 2 runs `others`, file and options: one line says what rank 2 has and rank 0 has not."""
    parts = [part for n, arguments in (("2", mine), ("1", others))
             for part in (":", "-n", n, gradtool, "bench", "--comm", "mpi", "-n", "1", *arguments)]
    done = subprocess.run([mpiexec, *more, *parts[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=HANGS)
    said = [line for line in done.stderr.splitlines() if line.startswith("gradtool: ")]
    case = (mine, others, done.returncode, done.stderr, done.stdout[:500])
    assert done.returncode in (2, 3) and len(said) == 1 and not done.stdout, case
    assert all(word in said[0] for word in ("rank 2", *words)), case


def different_jobs(folder):
    def copy(name, change=None, **options):
        path = str(pathlib.Path(folder) / name)
        conforming.write(path, **{"workers": 3, **options})
        with h5py.File(path, "r+") as file:
            if change:
                change(file)
        return path

    def other_value(file):
        file["tensors/0001/gradient"][2, 2, 7] += np.float32(1e-6)

    def widened(file):
        """The values of half.h5 as float32."""
        for t, x in conforming.gradients(3, 3, "bf16").items():
            file[f"tensors/{t:04d}/gradient"][...] = x

    a = copy("a.h5")
    shutil.copy(a, pathlib.Path(folder) / "b.h5")
    b = str(pathlib.Path(folder) / "b.h5")
    topk = ["--codec", "topk"]
    cases = [([a, "--codec", "topk:ratio=0.1"], [a, "--codec", "topk:ratio=0.5"], "--codec", "ratio=0.1", "ratio=0.5"),
             ([a, *topk], [a, "--codec", "qsgd"], "--codec", "topk", "qsgd"),
             ([a, *topk], [a, *topk, "--codec", "qsgd"], "number of codecs", "'1'", "'2'"),
             ([a, *topk], [a, *topk, "--granularity", "model"], "--granularity", "bucket:25MB", "model"),
             ([a, *topk], [a, *topk, "--seed", "2"], "--seed", "'1'", "'2'"),
             ([a, *topk], [a, *topk, "--reduce", "hop"], "--reduce", "auto", "hop"),
             ([a, *topk], [a, *topk, "--all-reduce", "doubling"], "--all-reduce", "ring", "doubling"),
             ([a, *topk], [a, *topk, "--pipeline", "2"], "--pipeline", "'1'", "'2'"),
             ([a, *topk], [a, *topk, "--baseline-dtype", "bf16"], "--baseline-dtype", "captured", "bf16"),
             ([a, *topk], [a, *topk, "--network", "10gbe"], "--network", "yes", "no"),
             ([a, *topk, "--network", "10gbe:node=2,inner=nvlink"], [a, *topk, "--network", "10gbe"], "ranks of a machine", "'2'", "'1'"),
             ([copy("reduced.h5", lambda f: f.attrs.__setitem__("reduce_dtype", "bfloat16")), *topk], [a, *topk], "reduce_dtype", "bf16", "none"),
             ([a, *topk, "--network", "10gbe"], [a, *topk, "--network", "10gbe", "--payloads", f"{folder}/p"], "--payloads", "yes", "no"),
             ([a, *topk], [a, *topk, "--csv", f"{folder}/lost.csv"], "outputs", "none", "--csv"),
             ([copy("half.h5", dtype="bf16"), *topk], [copy("wide.h5", widened), *topk], "tensor 0", "bf16", "f32"),
             ([a, *topk], [a, *topk, "--check", "0"], "--check", "yes", "no"),
             ([a, *topk], [a, *topk, "--timing", "isolated"], "--timing", "isolated", "both"),
             ([a, *topk], [a, *topk, "--layers", "conv"], "--layers", "all", "conv"),
             ([a, *topk], [copy("steps.h5", steps=4), *topk], "steps", "'3'", "'4'"),
             ([a, *topk], [copy("workers.h5", workers=5), *topk], "workers", "'3'", "'5'"),
             ([a, *topk], [copy("fewer_workers.h5", workers=2), *topk], "workers", "'3'", "'2'"),
             ([a, *topk], [copy("shape.h5", lambda f: f["tensors/0000"].attrs.__setitem__("shape", [3, 8, 3, 3])), *topk],
              "tensor 0", "conv.weight [3, 8, 3, 3]", "conv.weight [8, 3, 3, 3]"),
             ([a, *topk], [copy("tensors.h5", lambda f: f["tensors"].__delitem__("0002")), *topk], "tensors", "'3'", "'2'"),
             ([a, *topk], [copy("value.h5", other_value), *topk], "the gradients of conv.bias"),
             ([a, *topk], [copy("rate.h5", lambda f: f["steps/learning_rate"].__setitem__(1, 5.0)), *topk], "learning rates"),
             # A rank that alone cannot do something says so itself.
             ([a, *topk], [a, "--codec", "no_such_codec"], "no_such_codec"),
             ([a, *topk], [str(pathlib.Path(folder) / "gone.h5"), *topk], "gone.h5")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda case: differ(*case), cases))
    same = subprocess.run([mpiexec, *more, "-n", "1", gradtool, "bench", a, "--comm", "mpi", *topk, "-n", "5", ":",
                           "-n", "2", gradtool, "bench", b, "--comm", "mpi", *topk, "-n", "7", "--per-tensor"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert same.returncode == 0, same.stderr  # copies of a file, and options that are the first rank's business alone


def chosen_levels(folder):
    """A network's file is the first rank's, but all ranks replay the two levels that its machines ask for."""
    capture, file = str(pathlib.Path(folder) / "four.h5"), pathlib.Path(folder) / "net.json"
    conforming.write(capture, workers=4)
    file.write_text(json.dumps({"format": "gradtool.network", "schema_version": 1, "name": "net",
                                "link": {"alpha_us": 50, "beta_gbit_s": 1, "contention": 1}}))
    parts = [part for n, network in (("1", file), ("3", pathlib.Path(folder) / "absent.json"))
             for part in (":", "-n", n, gradtool, "bench", capture, "--comm", "mpi", "-n", "1", "--codec", "int8", "--csv", "-", "--network",
                          f"{network}:node=2,inner=nvlink")]
    done = subprocess.run([mpiexec, *more, *parts[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    ways = {(row["levels"], row["aggregation"]) for row in csv.DictReader(io.StringIO(done.stdout)) if row["codec"] == "int8"}
    assert ways == {(levels, way) for levels in ("", "node=2") for way in ("gather", "alltoall")}, ways


with tempfile.TemporaryDirectory() as scratch:
    different_jobs(scratch)
    chosen_levels(scratch)
    means = str(pathlib.Path(scratch) / "means.h5")
    rows([], "--codec", "bf16", "--reconstruction", means)
    fails_once(2, "without mpirun", sample, "--comm", "mpi", "--received", means)
fails_once(2, "add --comm mpi", sample)
fails_once(2, "--seed", sample, "--comm", "mpi", "--seed", "-1")
fails_once(2, "leave --ranks out", sample, "--comm", "mpi", "--ranks", "1")
fails_once(3, "/no/such/file.h5", "/no/such/file.h5", "--comm", "mpi")
fails_once(4, "/proc/x.h5", sample, "--comm", "mpi", "--codec", "topk", "--reconstruction", "/proc/x.h5")
compare("--codec", "all")
compare("--codec", "qsgd", "--seeds", "3,4", "--steps", "100:101")
compare("--codec", "topk", "--timing", "concurrent", "--comm-timeout", "1e6")  # no wait overflows
compare("--pipeline", "3", "--granularity", "model", "--timing", "concurrent", *(f"--codec={c}" for c in ("topk", "qsgd", "powersgd", "oktopk")))
print("threads and MPI agree in every error and byte")

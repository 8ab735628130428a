"""bench under mpirun gives the numbers that threads give. Usage: check_mpi.py GRADTOOL SOURCE_DIR MPIEXEC"""
import csv
import io
import pathlib
import subprocess
import sys
import time

gradtool, root = sys.argv[1], pathlib.Path(sys.argv[2])
mpiexec = sys.argv[3] if len(sys.argv) > 3 else ""  # CMake drops an empty argument
listed = subprocess.run([gradtool, "list", "comm", "--csv", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout
if not mpiexec or not any(r["name"] == "mpi" and r["available"] == "true" for r in csv.DictReader(io.StringIO(listed))):
    print("skipped: built without MPI")
    sys.exit(77)
sample = str(root / "datasets/lenet5-fashion-mnist.h5")


def rows(launch, *flags):
    out = subprocess.run([*launch, gradtool, "bench", sample, "--csv", "-", "-n", "2", "--threads", "1", *flags],
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


def fails_once(status, word, *flags):
    """Every process meets the error; one says it, and the job ends at once."""
    begun = time.monotonic()
    done = subprocess.run([mpiexec, "-n", "2", *more, gradtool, "bench", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = [line for line in done.stderr.splitlines() if line.startswith("gradtool: ")]
    assert done.returncode == status and len(said) == 1 and word in said[0], (flags, done.returncode, done.stderr)
    assert time.monotonic() - begun < 9, flags


fails_once(2, "add --comm mpi", sample)
fails_once(2, "--seed", sample, "--comm", "mpi", "--seed", "-1")
fails_once(2, "leave --ranks out", sample, "--comm", "mpi", "--ranks", "1")
fails_once(3, "/no/such/file.h5", "/no/such/file.h5", "--comm", "mpi")
fails_once(4, "/proc/x.h5", sample, "--comm", "mpi", "--codec", "topk", "--reconstruction", "/proc/x.h5")
compare("--codec", "all")
compare("--codec", "topk", "--timing", "concurrent", "--comm-timeout", "1e6")  # no wait overflows
compare("--pipeline", "3", "--granularity", "model", "--timing", "concurrent", *(f"--codec={c}" for c in ("topk", "qsgd", "powersgd", "oktopk")))
print("threads and MPI agree in every error and byte")

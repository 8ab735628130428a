"""A rank that dies or stalls ends the job, with a line that names it. Usage: check_dead_rank.py COMM_MPI MPIEXEC [--slow]"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

program, mpiexec = ([word for word in sys.argv[1:] if word != "--slow"] + ["", ""])[:2]  # CMake drops empty arguments
if not program or not mpiexec:
    print("skipped: built without MPI")
    sys.exit(77)
version = subprocess.run([mpiexec, "--version"], stdout=subprocess.PIPE, text=True).stdout
open_mpi = "Open MPI" in version or "OpenRTE" in version
# A launcher that does not look: then it is the watch alone that ends the job.
unnoticed = ["--mca", "orte_abort_on_non_zero_status", "0"] if open_mpi else []

CASES = [  # program's arguments, flags of the launcher, what it says; nothing when all is well
    ("kill 1", [], "rank 1"),
    ("kill 2", unnoticed, "rank 2 has not been heard from for"),
    ("stop 0", [], "rank 0 has not been heard from for"),
    ("stop 3", [], "rank 3 has not been heard from for"),
    ("compute 2", [], "rank 2 has been computing for"),
    ("leave 1", [], "rank 1 has ended, and rank"),
    ("mismatch 1", [], "rank 1 in barrier"),
]
if "--slow" in sys.argv:  # by the clock: a healthy job's ranks are not judged although each takes most of the time-out
    CASES = [("slow", [], "")]


def left(token):
    """Processes of this case that still run."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if token.encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            pass  # it has ended
    return found


def run(case):
    what, flags, says = case
    token = f"{os.getpid()}-{what.replace(' ', '-')}"
    command = [mpiexec, "-n", "4", *(["--oversubscribe"] if open_mpi else []), *flags, program, *(what + " 0").split()[:2], token]
    # Jobs that begin at the same time would race for the folder that Open MPI makes for all jobs of a user, and one would fail.
    with tempfile.TemporaryDirectory(prefix="gt") as folder:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200,
                              env={**os.environ, "TMPDIR": folder})
    assert (done.returncode == 0) == (not says), f"{what}: exit status {done.returncode}\n{done.stdout}"
    assert says in done.stdout, f"{what}: does not say '{says}'\n{done.stdout}"
    assert says or "gradtool:" not in done.stdout, f"{what}: a healthy job is judged\n{done.stdout}"
    deadline = time.monotonic() + 100
    while left(token) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left(token), f"{what}: processes {left(token)} are left"
    return f"{what}: ended, and nothing is left"


with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "8"))) as pool:
    for line in pool.map(run, CASES):
        print(line)

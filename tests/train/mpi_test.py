#!/usr/bin/env python3
"""Processes of MPI train the same weights as threads, killed or not. Usage: mpi_test.py GRADTOOL MPIEXEC"""
import csv
import io
import os
import signal
import subprocess
import sys
import tempfile
import time

from example import check, compare, hashes, rows, run, until_saved, write_data

program = os.path.abspath(sys.argv[1])
mpiexec = sys.argv[2] if len(sys.argv) > 2 else ""  # CMake drops an empty argument
listed = subprocess.run([program, "list", "comm", "--csv", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout
if not mpiexec or not any(r["name"] == "mpi" and r["available"] == "true" for r in csv.DictReader(io.StringIO(listed))):
    print("skipped: built without MPI")
    sys.exit(77)
version = subprocess.run([mpiexec, "--version"], stdout=subprocess.PIPE, text=True).stdout
launch = [mpiexec, *(["--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else []), "-n"]

with tempfile.TemporaryDirectory() as folder:
    data = write_data(folder)
    common = ["--batch-size", "8", "--threads", "1", *data, "--codec", "topk:ratio=0.05", "--codec", "qsgd:bits=4"]

    # Three ranks. none rides MPI's own all-reduce, which adds in another order than the ring of threads.
    command = [program, "train", "--model", "resnet20", "--steps", "2", "--micro-batches", "2", "--test-images", "32", *common]
    threads, mpi = os.path.join(folder, "threads"), os.path.join(folder, "mpi")
    done = run(*command, "--workers", "3", "--out", threads)
    check(done.returncode == 0, done.stderr)
    done = run(*launch, "3", *command, "--comm", "mpi", "--out", mpi)
    check(done.returncode == 0, done.stderr)

    def of_codecs(out):
        return ([r for r in rows(out) if r["codec"] != "none"],
                {k: h for k, h in hashes(out).items() if k[0] != "none"})

    check(of_codecs(mpi) == of_codecs(threads), f"MPI differs:\n{of_codecs(mpi)}\n{of_codecs(threads)}")
    check(done.stdout.count("topk:ratio=0.05") == 1, f"more than one process speaks: {done.stdout}")

    # The file of a network is read by the first rank alone, and is no difference between ranks.
    network = os.path.join(folder, "net.json")
    done = run(program, "probe", "--comm", "threads", "-g", "2", "--collective", "pair", "-e", "64K", "-n", "1", "--rounds", "1", "--name", "found", "-o", network)
    check(done.returncode == 0, done.stderr)

    # A job that is killed goes on where it was, to what threads train undisturbed: two numbers have one sum, in whichever order.
    command = [program, "train", "--model", "lenet5", *common, "--codec", "powersgd", "--epochs", "2", "--checkpoint-every", "3", "--network", network]
    job = [*launch, "2", *command, "--comm", "mpi"]
    whole, out = os.path.join(folder, "whole"), os.path.join(folder, "killed")
    done = run(*command, "--workers", "2", "--out", whole)
    check(done.returncode == 0, done.stderr)
    process = subprocess.Popen([*job, "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until_saved(process, out)
    check(process.poll() is None, "ended before it could be killed")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1.0)  # ranks that have lost their launcher end by themselves
    done = run(*job, "--out", out, "--resume")
    check(done.returncode == 0, done.stderr)
    compare(out, (rows(whole), hashes(whole)), "a killed job")
    with open(os.path.join(out, "train.csv"), newline="") as file:
        modelled = [value for row in csv.DictReader(file) for name, value in row.items() if name.startswith("modelled_")]
        check(modelled and all(float(value) > 0 for value in modelled), f"nothing was modelled: {modelled}")

    def fails(status, word, *command):
        done = run(*command)
        said = [line for line in done.stderr.splitlines() if line.startswith("gradtool: ")]
        check(done.returncode == status and len(said) == 1 and word in said[0], f"{command}: {done}")

    start = [program, "train", "--model", "lenet5", "--batch-size", "8", *data, "--steps", "2"]
    spare = ["--out", os.path.join(folder, "spare")]
    fails(2, "add --comm mpi", *launch, "2", *start, *spare)
    fails(2, "leave --workers out", *launch, "2", *start, "--comm", "mpi", "--workers", "3", *spare)
    fails(2, "exists already", *launch, "2", *start, "--comm", "mpi", "--out", whole)
    fails(2, "--seeds", *launch, "1", *start, "--comm", "mpi", *spare, ":", "-n", "1", *start, "--comm", "mpi", *spare, "--seeds", "2")
print("ok")

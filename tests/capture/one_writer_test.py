#!/usr/bin/env python3
"""Two captures with one --out: one goes on and loses nothing, the other is refused with a sentence, whichever started
first and with --force. Usage: one_writer_test.py GRADTOOL"""
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

import h5py

from synthetic import check, run, write_images

program = os.path.abspath(sys.argv[1])
COMMON = ("capture", "--model", "lenet5", "--workers", "2", "--batch-size", "8", "--threads", "1", "--log-steps")


def start(data, out, *arguments):
    return subprocess.Popen([program, *COMMON, "--data-dir", data, "--out", out, *arguments], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def first_step(process):
    """Returns once a step is written, and the capture stopped: it holds its file, and takes no processor time until end()."""
    line = process.stderr.readline()
    check(line.startswith("captured step"), f"capture says {line!r}")
    process.send_signal(signal.SIGSTOP)


def end(process, out):
    """Everything that the one who goes on has reported is in the file that has the name."""
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    lines = process.stderr.read().splitlines()  # communicate() would lose what readline() has read ahead
    process.wait(timeout=600)
    check(process.returncode == 130, f"exit status {process.returncode}")
    with h5py.File(out, "r") as file:
        steps = [int(line.split()[-1]) for line in lines if line.startswith("captured step")]
        check(file["steps/iteration"][1:].tolist() == steps, "reported steps are not in the file")


with tempfile.TemporaryDirectory() as folder:
    write_images(folder)
    out = os.path.join(folder, "out.h5")
    check(run(program, *COMMON, "--data-dir", folder, "--out", out, "--steps", "2").returncode == 0, "an old file")

    first = start(folder, out, "--force", "--steps", "1000000")
    first_step(first)
    for extra in (["--force"], []):
        second = run(program, *COMMON, "--data-dir", folder, "--out", out, *extra)
        check(second.returncode == 2 and second.stderr.count("\n") == 1, f"{extra}: {second.returncode} {second.stderr}")
    check("exists already" in second.stderr, second.stderr)
    end(first, out)

    # One that started earlier and finds at the end of its preparations that another is writing by now. Its images come
    # through a pipe, so that its preparations take until this test lets them end.
    late = os.path.join(folder, "late")
    os.mkdir(late)
    images = "train-images-idx3-ubyte.gz"
    os.mkfifo(os.path.join(late, images))
    os.symlink(os.path.join(folder, "train-labels-idx1-ubyte"), os.path.join(late, "train-labels-idx1-ubyte"))
    for path in (out, os.path.join(folder, "fresh.h5")):
        early = start(late, path, "--force", "--steps", "3")
        with open(os.path.join(late, images), "wb") as pipe:  # opens when the early one has begun to read
            first = start(folder, path, "--force", "--steps", "1000000")
            first_step(first)
            with open(os.path.join(folder, images), "rb") as file:
                pipe.write(file.read())
        says = early.communicate(timeout=600)[1]
        check(early.returncode == 2 and "being written" in says and says.count("\n") == 1, f"{early.returncode} {says}")
        end(first, path)

    done = run(program, *COMMON, "--data-dir", folder, "--out", out, "--steps", "2", "--force")
    check(done.returncode == 0, f"nobody writes any more: {done.stderr}")

    # The file that --force replaces is there until the new one has a step: after no room, a stop and a kill before.
    with open(out, "rb") as file:
        old = file.read()

    def holds_old(what):
        with open(out, "rb") as file:
            check(file.read() == old, f"{what}: the old file is lost")

    full = run(program, *COMMON, "--data-dir", folder, "--out", out, "--steps", "2", "--force",
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    check(full.returncode == 4 and "out.h5' stays as it was" in full.stderr, f"{full.returncode} {full.stderr}")
    holds_old("no room")
    for stop, status in ((signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)):
        late = start(folder, out, "--force", "--start-step", "999999", "--end-step", "1000000")
        while not any(name.startswith(".gradtool-") for name in os.listdir(folder)) and late.poll() is None:
            time.sleep(0.01)
        late.send_signal(stop)
        says = late.communicate(timeout=600)[1]
        check(late.returncode == status, f"{late.returncode} {says}")
        holds_old(stop.name)
        left = [name for name in os.listdir(folder) if name.startswith(".gradtool-")]
        check(len(left) == (stop == signal.SIGKILL), f"{stop.name} leaves {left}")
print("ok")

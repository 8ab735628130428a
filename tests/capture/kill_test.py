#!/usr/bin/env python3
"""Kills capture with SIGKILL at random moments: every step that it reported must be readable, whole and right.
Then stops it with SIGINT: a closed file, marked incomplete, exit status 130. Usage: kill_test.py GRADTOOL [SEED]"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import h5py

from synthetic import check, check_killed_capture, contents, reported_steps, run, write_images

KILLS = 3
COMMON = ("--model", "lenet5", "--workers", "2", "--batch-size", "8", "--threads", "1")
program = os.path.abspath(sys.argv[1])
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 20240229
chance = random.Random(seed)


def start(folder, out, *arguments):
    """Capture in the background, and the path of its standard error."""
    path = os.path.join(folder, "log")
    command = [program, "capture", *COMMON, "--data-dir", folder, "--log-steps", "--out", out, *arguments]
    with open(path, "w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
    return process, path


def wait_for_steps(process, log, steps):
    deadline = time.monotonic() + 60
    while len(reported_steps(log)) < steps:
        check(process.poll() is None, f"capture ended by itself: {reported_steps(log)}")
        check(time.monotonic() < deadline, "capture reports no steps")
        time.sleep(0.005)


with tempfile.TemporaryDirectory() as folder:
    write_images(folder)
    whole_path = os.path.join(folder, "whole.h5")
    done = run(program, "capture", *COMMON, "--data-dir", folder, "--steps", "40", "--out", whole_path)
    check(done.returncode == 0, done.stderr)
    whole = contents(whole_path)

    caught = 0
    for number in range(KILLS):
        out = os.path.join(folder, f"killed{number}.h5")
        process, log = start(folder, out, "--steps", "1000000")
        wait_for_steps(process, log, 1)
        time.sleep(chance.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps = reported_steps(log)
        check_killed_capture(program, out, steps, whole, f"kill {number} (seed {seed})")
        caught += len(steps)
        os.remove(out)
    print(f"{KILLS} kills, {caught} reported steps, all of them readable")

    out = os.path.join(folder, "interrupted.h5")
    process, log = start(folder, out, "--steps", "1000000")
    wait_for_steps(process, log, 3)
    process.send_signal(signal.SIGINT)
    check(process.wait(timeout=600) == 130, f"exit status {process.returncode} after SIGINT")
    with h5py.File(out, "r") as file:
        check(int(file.attrs["complete"]) == 0, "an interrupted capture is marked complete")
        check(int(file.attrs["interrupted"]) == 1, "an interrupted capture does not say so")
        check(file["steps/iteration"][:].tolist() == reported_steps(log), "steps after SIGINT")
    said = run(program, "validate", out)
    check(said.returncode == 0 and "the writer was interrupted" in said.stdout, f"an interrupted file: {said}")

    # All that was asked for is in the file when the training that follows is stopped.
    out = os.path.join(folder, "trained_on.h5")
    process, log = start(folder, out, "--end-step", "3", "--steps", "1000000")
    wait_for_steps(process, log, 3)
    process.send_signal(signal.SIGINT)
    check(process.wait(timeout=600) == 130, f"exit status {process.returncode} after SIGINT")
    with h5py.File(out, "r") as file:
        check(int(file.attrs["complete"]) == 1, "a finished schedule is not marked complete")
print("ok")

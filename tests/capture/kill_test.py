#!/usr/bin/env python3
"""Kills capture with SIGKILL at random moments: every step that it reported must be readable, whole and right.
Then stops it with SIGINT: a closed file, marked incomplete, exit status 130. Usage: kill_test.py GRADTOOL [SEED]"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

from synthetic import check, contents, run, write_images

KILLS = 8
COMMON = ("--model", "lenet5", "--workers", "2", "--batch-size", "8", "--threads", "1")
program = os.path.abspath(sys.argv[1])
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 20240229
chance = random.Random(seed)


def start(folder, out, *arguments):
    """Capture in the background, and its standard error."""
    path = os.path.join(folder, "log")
    open(path, "w").close()
    log = open(path, "a+")  # the two processes share the file's position: only appending is safe while this one reads
    command = [program, "capture", *COMMON, "--data-dir", folder, "--log-steps", "--out", out, *arguments]
    process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
    return process, log


def reported(log):
    log.seek(0)
    return [int(line.split()[-1]) for line in log.read().splitlines() if line.startswith("captured step ")]


def wait_for_steps(process, log, steps):
    deadline = time.monotonic() + 60
    while len(reported(log)) < steps:
        check(process.poll() is None, f"capture ended by itself: {reported(log)}")
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
        steps = reported(log)
        info = run(program, "info", out, "--json", "-")
        check(info.returncode == 0, f"kill {number} (seed {seed}): info says {info.stderr}")
        info = json.loads(info.stdout)
        check(not info["complete"], f"kill {number} (seed {seed}): marked complete")
        check(len(steps) <= info["steps"] <= len(steps) + 1,
              f"kill {number} (seed {seed}): {len(steps)} reported, {info['steps']} readable")
        found = contents(out)
        check(found["steps/iteration"][:len(steps)].tolist() == steps, f"kill {number}: iterations")
        for key, values in found.items():
            if key.endswith("/gradient") or key == "steps/loss":
                # The training is deterministic, so what was rescued can be compared with an undisturbed capture.
                count = min(len(steps), 40)
                check(len(values) >= len(steps), f"kill {number} (seed {seed}): {key} has {len(values)} steps")
                check(np.isfinite(np.asarray(values[:len(steps)], dtype=np.float64)).all(), f"{key}: not finite")
                check(np.array_equal(values[:count], whole[key][:count]), f"kill {number} (seed {seed}): {key} differs")
        caught += len(steps)
        os.remove(out)
    print(f"{KILLS} kills, {caught} reported steps, all of them readable")

    out = os.path.join(folder, "interrupted.h5")
    process, log = start(folder, out, "--steps", "1000000")
    wait_for_steps(process, log, 3)
    process.send_signal(signal.SIGINT)
    check(process.wait(timeout=60) == 130, f"exit status {process.returncode} after SIGINT")
    with h5py.File(out, "r") as file:
        check(int(file.attrs["complete"]) == 0, "an interrupted capture is marked complete")
        check(file["steps/iteration"][:].tolist() == reported(log), "steps after SIGINT")
    check(run(program, "validate", out).returncode == 0, "an interrupted file is not valid")

    # All that was asked for is in the file when the training that follows is stopped.
    out = os.path.join(folder, "trained_on.h5")
    process, log = start(folder, out, "--end-step", "3", "--steps", "1000000")
    wait_for_steps(process, log, 3)
    process.send_signal(signal.SIGINT)
    check(process.wait(timeout=60) == 130, f"exit status {process.returncode} after SIGINT")
    with h5py.File(out, "r") as file:
        check(int(file.attrs["complete"]) == 1, "a finished schedule is not marked complete")
print("ok")

#!/usr/bin/env python3
"""Kills train with SIGKILL at random moments, stops it with SIGINT, resumes it, and expects the rows and the weights of an
undisturbed training. Usage: kill_test.py GRADTOOL [SEED]"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from example import check, compare, hashes, rows, run, until_saved, write_data

KILLS = 3
program = os.path.abspath(sys.argv[1])
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 20240229
chance = random.Random(seed)

# Batch normalisation, and codecs that keep something of every kind: a residual, factors, bases and phases, momentum.
CASES = [("resnet20", ["--codec", "powersgd:rank=1", "--steps", "10", "--checkpoint-every", "2", "--test-images", "16"]),
         ("lenet5", ["--codec", "topk:ratio=0.01", "--codec", "gradiveq:lt=3,lc=5", "--codec", "dgc:ratio=0.05",
                     "--seeds", "1,2", "--steps", "20", "--checkpoint-every", "5", "--network", "1gbe"])]

with tempfile.TemporaryDirectory() as folder:
    data = write_data(folder)
    for model, options in CASES:
        command = [program, "train", "--model", model, "--workers", "2", "--batch-size", "8", "--threads", "1", *data, *options]
        whole = os.path.join(folder, f"{model}-whole")
        done = run(*command, "--out", whole)
        check(done.returncode == 0, done.stderr)
        expected = rows(whole), hashes(whole)

        out = os.path.join(folder, model)
        killed = stopped = 0
        for number in range(KILLS):
            process = subprocess.Popen([*command, "--out", out, "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until_saved(process, out)
            time.sleep(chance.uniform(0.0, 0.1))
            gentle = number % 3 == 2
            process.send_signal(signal.SIGINT if gentle else signal.SIGKILL)
            status = process.wait(timeout=600)
            check(status in (0, 130 if gentle else -signal.SIGKILL), f"exit status {status} after a signal")
            killed += status == -signal.SIGKILL
            stopped += status == 130
            if status == 0:
                break
        check(killed > 0, "no kill came in time")
        done = run(*command, "--out", out, "--resume")
        check(done.returncode == 0, done.stderr)
        compare(out, expected, f"{model} after {killed} kills and {stopped} interrupts (seed {seed})")
        print(f"{model}: {killed} kills, {stopped} interrupts, the same rows and weights")

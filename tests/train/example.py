"""Helpers that the tests of train share."""
import contextlib
import csv
import json
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../capture"))
from synthetic import check, run, write_images  # noqa: E402, F401


def write_data(folder, count=256):
    """Training and test images; returns the options that name them."""
    write_images(folder, count)
    write_images(folder, 128, "t10k", seed=1)
    return ["--dataset", "fashion-mnist", "--data-dir", folder]


def rows(out, name="train.csv"):
    """The rows without what was measured in seconds."""
    with open(os.path.join(out, name), newline="") as file:
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(file)]


def hashes(out):
    """The hash of the final weights of each run."""
    with open(os.path.join(out, "train.json")) as file:
        return {(r["codec"], r["params"], r["seed"]): r["weights_sha256"] for r in json.load(file)["runs"]}


def until_saved(process, out):
    """Returns once the training has written a checkpoint that was not there at the call, or has ended."""
    def saved():
        found = set()
        with contextlib.suppress(OSError):  # a file was renamed meanwhile
            for entry in os.scandir(os.path.join(out, "checkpoints")):
                found.add((entry.name, entry.stat().st_mtime_ns))
        return found
    before = saved()
    while process.poll() is None and saved() <= before:
        time.sleep(0.005)


def compare(out, expected, what):
    check(rows(out) == expected[0], f"{what}: rows differ:\n{rows(out)}\n{expected[0]}")
    check(hashes(out) == expected[1] and all(len(h) == 64 for h in expected[1].values()), f"{what}: weights differ")

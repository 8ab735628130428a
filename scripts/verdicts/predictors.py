#!/usr/bin/env python3
"""Replays the arms of trainings on captures of the same models, early, midway and late, and writes every error that may tell what an arm loses.

    predictors.py FOLDER [--captures FOLDER] [--gradtool PROGRAM] [--cifar FOLDER] [--text FILE] [--fashion-mnist FOLDER] [--only CAMPAIGN ...]

FOLDER is what run.py --out wrote, or the data of earlier pages; predictors.csv goes there, and pages.py makes a section of it. Some ten
minutes of processor time, nearly all for the captures, which are kept in --captures. Trainings are those of run.py that are replayed.
"""
import argparse
import csv
import io
import os
import shutil
import subprocess
import sys
import types

import campaigns
from results import read_csv
from run import write_csv

WINDOW, SHORT = 24, 10  # captured steps of a phase, and how many of them a shorter capture has
PHASES = ("early", "middle", "late")
ERRORS = ("nmse", "cumulative_nmse", "update_nmse", "cosine_by_layer")


def capture(campaign, options):
    """One file with three windows of a training without codecs: the first at a twentieth of it, the last at its end."""
    path = os.path.join(options.captures, campaign.name + ".h5")
    if not os.path.exists(path):
        trained = [word for pair in zip(campaign.options[::2], campaign.options[1::2]) for word in pair]
        side = "weight,second_moment" if "--micro-batches" in campaign.options else "weight"
        subprocess.run([options.gradtool, "capture", "--model", campaign.model, *campaign.data, "--workers", "4", "--batch-size", str(campaign.batch),
                        "--steps", str(campaign.steps), *trained, "--start-step", str(campaign.steps // 20), "--windows", "3", "--window-steps",
                        str(WINDOW), "--with", side, "--seed", "1", "--out", path + ".part", "--force"], check=True, stdout=subprocess.DEVNULL)
        os.replace(path + ".part", path)
    return path


def windows_of(path):
    """The first iteration of each window."""
    import h5py
    with h5py.File(path) as file:
        return [int(first) for first in file["steps/iteration"][::WINDOW]]


def bench(path, arms, first, steps, options):
    command = [options.gradtool, "bench", path, *(word for arm in arms for word in ("--codec", arm)), "--timing", "isolated", "-n", "1", "-w", "0",
               "--update-error", "file", "--steps", f"{first}:{first + steps - 1}", "--csv", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):  # 1: a codec failed, which its row says
        sys.exit(f"predictors.py: gradtool bench ended with status {done.returncode}")
    return list(csv.DictReader(io.StringIO(done.stdout)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--captures", help="folder of the captures [FOLDER/replay]")
    parser.add_argument("--gradtool", default="gradtool")
    parser.add_argument("--cifar", help="folder with CIFAR-10's binary files")
    parser.add_argument("--text", help="any text, a megabyte or more")
    parser.add_argument("--fashion-mnist", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--only", action="append", metavar="CAMPAIGN", help="repeatable [all that are replayed]")
    options = parser.parse_args()
    if not shutil.which(options.gradtool):
        sys.exit(f"predictors.py: there is no program {options.gradtool}")
    options.captures = options.captures or os.path.join(options.folder, "replay")
    os.makedirs(options.captures, exist_ok=True)
    known = {(row["campaign"], row["codec"], row["params"]): row["arm"] for row in read_csv(os.path.join(options.folder, "arms.csv"))}
    delays = {(row["campaign"], row["arm"]): row["delays"] for row in read_csv(os.path.join(options.folder, "replay.csv"))}
    settings = types.SimpleNamespace(quick=False, cifar=options.cifar, text=options.text, fashion_mnist=options.fashion_mnist)
    found, captured = [], {}
    for campaign in campaigns.all_campaigns(settings):
        arms = [arm for arm in campaign.arms if (campaign.name, arm) in delays]
        if not (campaign.replay and arms) or campaign.missing or (options.only and campaign.name not in options.only):
            continue
        # Campaigns of one setting share a capture.
        setting = (campaign.model, campaign.data, campaign.steps, campaign.options, campaign.batch)
        path = captured.setdefault(setting, None) or capture(campaign, options)
        captured[setting] = path
        for phase, first in zip(PHASES, windows_of(path)):
            for steps in (SHORT, WINDOW):
                for row in bench(path, arms, first, steps, options):
                    arm = known.get((campaign.name, row["codec"], row["params"]))
                    if arm is None and row["codec"] not in ("none", "noop"):
                        sys.exit(f"predictors.py: {row['codec']}:{row['params']} is no arm of {campaign.name}, which other parameters were recorded of")
                    if arm in (None, "none") or row["status"] != "ok" or row["reached"] != "true":
                        continue
                    found.append({"campaign": campaign.name, "phase": phase, "first_step": first, "steps": steps, "arm": arm, "codec": row["codec"],
                                  "delays": delays[campaign.name, arm], **{error: row[error] for error in ERRORS}})
        print(f"{campaign.name}: {len(arms)} arms", file=sys.stderr)
        write_csv(os.path.join(options.folder, "predictors.csv"), found)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains what the verdicts on papers rest on. Stop or kill it at any time; the same command goes on.

    run.py --out FOLDER [--cifar FOLDER] [--text FILE] [--hours 1] [--quick] [--only CAMPAIGN ...]

--list says what each campaign costs in processor hours; with --hours each call ends in time with exit status 130, until all is complete.
Needed are a gradtool with LibTorch in PATH (or --gradtool) and Debian's dataset-fashion-mnist (or --fashion-mnist). CIFAR-10's binary
files make ResNet-20 train on them, and not for fewer steps on Fashion-MNIST; a text makes gpt-nano and char-rnn run. pages.py then writes the pages.

In FOLDER: a folder for each campaign, as gradtool train writes it; campaigns.csv (what ran, by which command and build, on which data by
its hashes, in how many processor hours, and what did not, why), arms.csv (each codec as it was asked for, and its full parameters),
codecs.csv, replay.csv (errors of the same codecs on captures of the same models), losses.csv (what DLCP's queues lose).
"""
import argparse
import csv
import ctypes
import fcntl
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

import campaigns

REPLAYED_STEPS = 24
# Their memory delays nothing that is sent, so that a step's error counts, as in gradtool bench --advise.
KEEP_NOTHING_BACK = ("signsgd", "dlcp", "dynamiq", "optireduce")


def stop(status, sentence):
    print(f"run.py: {sentence}", file=sys.stderr)
    sys.exit(status)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of the runs, made where it is missing")
    parser.add_argument("--gradtool", default="gradtool", help="program to drive [the one in PATH]")
    parser.add_argument("--cifar", help="folder with CIFAR-10's binary files")
    parser.add_argument("--text", help="any text, a megabyte or more")
    parser.add_argument("--fashion-mnist", default="/usr/share/datasets/fashion-mnist", help="folder with its IDX files")
    parser.add_argument("--quick", action="store_true", help="few steps and two seeds, to try the scripts: no verdict is worth anything")
    parser.add_argument("--only", action="append", metavar="CAMPAIGN", help="repeatable; 'replay' is the part after the campaigns")
    parser.add_argument("--hours", type=float, help="stop after so many, with exit status 130 where something is left to do")
    parser.add_argument("--list", action="store_true", help="print the commands and what they cost, and do nothing")
    options = parser.parse_args()
    if not shutil.which(options.gradtool):
        stop(2, f"there is no program {options.gradtool}; put gradtool in PATH or name it with --gradtool")
    if options.hours is not None and not options.hours > 0:
        stop(2, f"--hours {options.hours:g} has to be more than 0")
    options.ends = None if options.hours is None else time.monotonic() + 3600 * options.hours
    for name in ("cifar", "text", "fashion_mnist"):
        path = getattr(options, name)
        if path and not os.path.exists(path):
            stop(2, f"--{name.replace('_', '-')} {path} is not there")
    return options


def call(command, options, quiet=False):
    """The exit status; 130 where the hours ended the program. It ends with this script, even where that is killed, so that no two
    write one folder."""
    def end_with_parent():
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    left = None if options.ends is None else options.ends - time.monotonic()
    if left is not None and left <= 0:
        stop(130, f"{options.hours:g} hours are over; the same command goes on")
    print("+", shlex.join(command), file=sys.stderr, flush=True)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL if quiet else sys.stderr, preexec_fn=end_with_parent)
    try:
        return process.wait(left)
    except subprocess.TimeoutExpired:
        process.terminate()  # gradtool train keeps a checkpoint, from which it goes on
        # A program that is still starting knows nothing of the signal yet, and ends by it.
        return 130 if (status := process.wait()) == -signal.SIGTERM else status
    except KeyboardInterrupt:
        process.wait()
        stop(130, "stopped; the same command goes on")


def write_csv(path, rows):
    if not rows:
        return
    with open(path + ".part", "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    os.replace(path + ".part", path)


def train_command(campaign, options):
    command = [options.gradtool, "train", "--model", campaign.model, *campaign.data, "--workers", "4", "--batch-size", str(campaign.batch),
               "--steps", str(campaign.steps), *campaign.options, "--seeds", ",".join(map(str, campaign.seeds))]
    for arm in campaign.arms:
        command += ["--codec", arm]
    return command + ["--out", os.path.join(options.out, campaign.name)]


def shown(command, options):
    """Returns the command in the form in which a reader would type it: without a path of this machine."""
    names = {options.gradtool: "gradtool", options.cifar: "CIFAR10_FOLDER", options.text: "TEXT", options.fashion_mnist: "FASHION_MNIST_FOLDER"}
    return shlex.join(names.get(word) or word.replace(options.out + os.sep, "FOLDER/") for word in command)


def record_of(folder):
    """train.json where the campaign is complete, else None."""
    try:
        with open(os.path.join(folder, "train.json")) as file:
            record = json.load(file)
    except FileNotFoundError:
        return None
    done = not record["interrupted"] and all(run["status"] in ("finished", "diverged") for run in record["runs"])
    return record if done else None


def processor_seconds():
    """All programs that this script has started and that have ended have taken so many."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spent_hours(campaign, options):
    """Processor hours of a campaign's trainings, in all calls of this script; that of a call that was killed is not known."""
    try:
        with open(os.path.join(options.out, campaign.name + ".seconds")) as file:
            return f"{sum(map(float, file)) / 3600:.3g}"
    except FileNotFoundError:
        return ""


def train(campaign, options):
    """Returns '' or why it failed."""
    folder, command = os.path.join(options.out, campaign.name), train_command(campaign, options)
    kept = os.path.join(options.out, campaign.name + ".command")
    wanted = shown(command, options)
    if os.path.exists(kept):
        with open(kept) as file:
            if file.read() != wanted:
                stop(2, f"{folder} was made by another command ({kept}); remove both, or give another --out")
    else:
        with open(kept, "w") as file:
            file.write(wanted)
    if record_of(folder):
        print(f"{campaign.name}: complete", file=sys.stderr)
        return ""
    before = processor_seconds()
    # It begins where nothing is there, and waits for one that was told to stop and still writes its checkpoint.
    status = call([*command, "--resume"], options)
    with open(os.path.join(options.out, campaign.name + ".seconds"), "a") as file:
        file.write(f"{processor_seconds() - before:.1f}\n")
    if status in (77, 130):
        stop(status, "this gradtool has no LibTorch" if status == 77 else "stopped; the same command goes on")
    if status != 0 or not record_of(folder):
        return f"gradtool train ended with status {status}"
    return ""


def arms_of(campaign, record):
    """gradtool gives parameters in full, in the order of the command; none is first."""
    specs = record["settings"]["--codec"].split(" ")
    if specs[0] != "none" or len(specs) != len(campaign.arms) + 1:
        stop(3, f"{campaign.name}: train.json has {len(specs)} codecs, the campaign {len(campaign.arms) + 1}")
    rows = []
    for arm, spec in zip(("none", *campaign.arms), specs):
        name, _, params = spec.partition(":")
        rows.append({"campaign": campaign.name, "arm": arm, "codec": name, "params": params or "default"})
    return rows


def build_of(record):
    """Returns the build that trained a record, which may be another one than is driven now."""
    build = record["provenance"]
    return f"gradtool {build['gradtool_version']} ({build['commit']}, {build['build_type']})"


def data_hashes(record):
    """The files that were read, each name with its hash."""
    prefix = "the hash of "
    return " ".join(f"{name[len(prefix):]}:{value}" for name, value in record["settings"].items() if name.startswith(prefix))


def write_state(found, failed, options):
    """campaigns.csv and arms.csv, from what is in the folder."""
    states, arms = [], []
    for campaign in found:
        record = None if campaign.missing else record_of(os.path.join(options.out, campaign.name))
        why = campaign.missing or failed.get(campaign.name) or ("" if record else "not reached yet")
        if record:
            arms += arms_of(campaign, record)
        states.append({
            "campaign": campaign.name, "status": "complete" if record else "not run", "reason": "" if record else why,
            "model": campaign.model, "dataset": campaign.data[1], "workers": 4, "batch": campaign.batch, "steps": campaign.steps,
            "seeds": " ".join(map(str, campaign.seeds)), "elements": record["elements"] if record else "",
            "steps_per_epoch": record["steps_per_epoch"] if record else "",
            "compared_with": campaign.compared_with or campaign.name,
            "gradtool": build_of(record) if record else "", "data_sha256": data_hashes(record) if record else "",
            "processor_hours": spent_hours(campaign, options), "quick": int(options.quick), "command": shown(train_command(campaign, options), options)})
    write_csv(os.path.join(options.out, "campaigns.csv"), states)
    write_csv(os.path.join(options.out, "arms.csv"), arms)


def capture(campaign, moment, start, count, options):
    """A gradient file of the same model, data and optimiser, whose training no codec takes part in."""
    path = os.path.join(options.out, "replay", f"{campaign.name}-{moment}.h5")
    if not os.path.exists(path):
        trained = [word for option, value in zip(campaign.options[::2], campaign.options[1::2]) if option != "--test-images"
                   for word in (option, value)]
        side = "weight,second_moment" if "--micro-batches" in campaign.options else "weight"
        status = call([options.gradtool, "capture", "--model", campaign.model, *campaign.data, "--workers", "4", "--batch-size",
                       str(campaign.batch), "--steps", str(campaign.steps), *trained, "--start-step", str(start),
                       "--end-step", str(start + count), "--with", side, "--seed", "1", "--out", path + ".part", "--force"], options, quiet=True)
        if status != 0:
            stop(status, f"gradtool capture ended with status {status}")
        os.replace(path + ".part", path)
    return path


def bench(path, arms, result, options, extra=()):
    """Rows of gradtool bench: none, noop, and the arms in their order. Errors do not depend on what else the machine does."""
    if not os.path.exists(result):
        command = [options.gradtool, "bench", path, *(word for arm in arms for word in ("--codec", arm)), "--timing", "isolated", "-n", "1",
                   "-w", "0", *extra, "--json", result + ".part"]
        status = call(command, options, quiet=True)
        if status not in (0, 1):  # 1: a codec failed, which its row says
            stop(status, f"gradtool bench ended with status {status}")
        os.replace(result + ".part", result)
    with open(result) as file:
        return json.load(file)["rows"]


def delays(row, codec):
    """Whether the codec of a row of bench keeps parts of the gradient for later. codec: what `gradtool list codecs --json` says of it."""
    feedback = "ef=on" in row["params"] or "ef=ef21" in row["params"] or (codec["error_feedback"] and "ef=off" not in row["params"])
    return feedback or (codec["memory"] and row["codec"] not in KEEP_NOTHING_BACK)


def replay(found, options):
    os.makedirs(os.path.join(options.out, "replay"), exist_ok=True)
    with open(os.path.join(options.out, "codecs.csv"), "w") as file:
        subprocess.run([options.gradtool, "list", "codecs", "--csv", "-"], check=True, stdout=file)
    described = subprocess.run([options.gradtool, "list", "codecs", "--json", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout
    codecs = {row["name"]: row for row in json.loads(described)}
    errors, losses = [], []
    for campaign in found:
        record = record_of(os.path.join(options.out, campaign.name))
        if not (campaign.replay and record):
            continue
        full = {(row["codec"], row["params"]): row["arm"] for row in arms_of(campaign, record)}
        count = min(REPLAYED_STEPS, campaign.steps // 4)
        for moment, start in (("early", campaign.steps // 20), ("middle", campaign.steps // 2)):
            path = capture(campaign, moment, start, count, options)
            rows = bench(path, campaign.arms, path.replace(".h5", ".json"), options)
            for row in rows:
                arm = full.get((row["codec"], row["params"]))
                if arm is None and row["codec"] not in ("none", "noop"):
                    sys.exit(f"run.py: {row['codec']}:{row['params']} is no arm of {campaign.name}, which other parameters were recorded of")
                if arm in (None, "none") or row["status"] != "ok":
                    continue
                errors.append({"campaign": campaign.name, "moment": moment, "first_step": row["first_step"], "last_step": row["last_step"],
                               "arm": arm, "codec": row["codec"], "params": row["params"], "delays": int(delays(row, codecs[row["codec"]])),
                               "reached": int(row["reached"]), "nmse": row["nmse"], "cumulative_nmse": row["cumulative_nmse"],
                               "payload_ratio": row["payload_ratio"], "wire_ratio": row["wire_ratio"]})
            lossy = next((c for c in found if c.name == campaign.name + "-dlcp"), None)
            if lossy and record_of(os.path.join(options.out, lossy.name)):
                # One rank alone: what the result has as a zero and the gradient has not was lost. noop loses all of it.
                rows = bench(path, lossy.arms, path.replace(".h5", "-losses.json"), options, ("--ranks", "1"))
                everything = next(row["zeroed_fraction"] for row in rows if row["codec"] == "noop")
                for arm, row in zip(lossy.arms, [row for row in rows if row["codec"] == "dlcp"], strict=True):
                    losses.append({"campaign": lossy.name, "moment": moment, "arm": arm, "codec": row["codec"], "params": row["params"],
                                   "lost": row["zeroed_fraction"] / everything, "nmse": row["nmse"]})
    write_csv(os.path.join(options.out, "replay.csv"), errors)
    write_csv(os.path.join(options.out, "losses.csv"), losses)


def main():
    options = arguments()
    options.out = os.path.abspath(options.out)
    found = campaigns.all_campaigns(options)
    names = [campaign.name for campaign in found]
    for name in options.only or ():
        if name not in (*names, "replay"):
            stop(2, f"there is no campaign {name}; there are {', '.join(names)} and replay")
    if options.list:
        for campaign in found:
            what = campaign.missing or f"{len(campaign.arms) + 1} arms, {len(campaign.seeds)} seeds, about {campaign.hours:.2g} processor hours"
            print(f"# {campaign.name}: {what}\n{shown(train_command(campaign, options), options)}")
        print(f"# together about {sum(campaign.hours for campaign in found if not campaign.missing):.2g} processor hours")
        return 0
    os.makedirs(options.out, exist_ok=True)
    failed = {}
    with open(os.path.join(options.out, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stop(2, f"another run.py is at work in {options.out}")
        for number, campaign in enumerate(found, 1):
            if campaign.missing:
                print(f"[{number}/{len(found)}] {campaign.name} is not run: {campaign.missing}", file=sys.stderr)
                continue
            if options.only and campaign.name not in options.only:
                continue
            print(f"[{number}/{len(found)}] {campaign.name}: {len(campaign.arms) + 1} arms, {len(campaign.seeds)} seeds, "
                  f"{campaign.steps} steps", file=sys.stderr, flush=True)
            why = train(campaign, options)
            if why:
                failed[campaign.name] = why
            write_state(found, failed, options)
        if not options.only or "replay" in options.only:
            replay(found, options)
        write_state(found, failed, options)
    for name, why in failed.items():
        print(f"run.py: {name}: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

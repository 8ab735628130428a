#!/usr/bin/env python3
"""train as a user meets it: the same numbers twice, divergence, folders that are there, mistakes.
Usage: command_line_test.py GRADTOOL"""
import csv
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

from example import check, compare, hashes, rows, run, write_data

program = os.path.abspath(sys.argv[1])


def line(*arguments):
    common = {"--model": "lenet5", "--workers": "2", "--batch-size": "8", "--threads": "1"}
    given = [word for key, value in common.items() if key not in arguments for word in (key, value)]
    return [program, "train", *given, *arguments]


def train(*arguments, **options):
    return run(*line(*arguments), **options)


def refused(status, words, *arguments):
    done = train(*arguments)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Try ")]
    check(done.returncode == status and len(lines) == 1 and lines[0].startswith("gradtool: ") and done.stdout == "",
          f"{arguments}: {done}")
    check(all(word in lines[0] for word in words), f"{arguments}: {lines[0]!r} does not say {words}")


with tempfile.TemporaryDirectory() as folder:
    data = write_data(folder)
    out = os.path.join(folder, "new", "run")
    command = [*data, "--epochs", "2", "--codec", "topk:ratio=0.05", "--codec", "qsgd:bits=2", "--seeds", "1,2",
               "--network", "1gbe", "--network", "100gbe", "--target-accuracy", "0.15"]
    done = train(*command, "--out", out)
    check(done.returncode == 0, done.stderr)
    table = rows(out)
    check([(r["codec"], r["seed"], r["epoch"], r["step"]) for r in table] ==
          [(c, s, str(e), str(16 * e)) for c in ("none", "topk", "qsgd") for s in "12" for e in (1, 2)], f"rows: {table}")
    check(all(r["status"] == "finished" for r in table), "a run did not finish")
    # none on a ring of two: a rank sends half of the gradient twice. 61706 parameters.
    check([int(r["wire_bytes"]) for r in table[:2]] == [16 * 4 * 61706, 32 * 4 * 61706], f"wire bytes: {table[:2]}")
    check(int(table[4]["wire_bytes"]) < 0.15 * int(table[0]["wire_bytes"]), "topk sends as much as none")
    for column in ("train_loss", "test_loss", "test_accuracy"):
        check(len({r[column] for r in table[::2]}) > 3, f"{column} is the same everywhere")
    with open(os.path.join(out, "train.csv"), newline="") as file:
        timed = list(csv.DictReader(file))
    for row in timed:
        seconds = [float(row[f"{what}_seconds"]) for what in ("compute", "total", "modelled_1gbe", "modelled_100gbe")]
        check(0 < seconds[0] < seconds[1] and 0 < seconds[3] < seconds[2], f"times: {row}")
        # Every codec is modelled with the computation of none.
        check(row["codec"] != "none" or seconds[3] >= seconds[0], f"modelled times: {row}")
    with open(os.path.join(out, "summary.csv"), newline="") as file:
        summary = list(csv.DictReader(file))
    check([r["codec"] for r in summary] == ["none", "topk", "qsgd"], f"summary: {summary}")
    for row in summary:
        finals = [float(r["test_accuracy"]) for r in table if r["codec"] == row["codec"] and r["epoch"] == "2"]
        check(abs(float(row["final_accuracy"]) - sum(finals) / 2) < 1e-12, f"final accuracy: {row}")
    with open(os.path.join(out, "train.json")) as file:
        record = json.load(file)
    check(record["format"] == "gradtool.train" and len(record["rows"]) == 12 and len(record["runs"]) == 6, "the record")
    check(record["provenance"] and record["settings"]["--seeds"] == "1,2", "provenance")
    check("topk:ratio=0.05" in done.stdout and "wrote " in done.stderr, f"what people read: {done}")
    expected = rows(out), hashes(out)

    # docs/train.md says what every column is; NETWORK stands for the name of one.
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/train.md")) as file:
        page = file.read()
    for column in {*timed[0], *summary[0]}:
        name = column.removesuffix("_low").removesuffix("_high")
        for network in ("1gbe", "100gbe"):
            name = name.replace(f"modelled_{network}_", "modelled_NETWORK_")
        check(f"`{name}`" in page, f"docs/train.md does not have the column {column}")

    # A folder that is there.
    refused(2, ["exists already", "--resume", "--force"], *command, "--out", out)
    refused(2, ["another command", "--learning-rate", "0.02", "0.01"], *command, "--out", out, "--resume", "--lr", "0.01")
    refused(2, ["another command", "--codec", "natural"], *command, "--codec", "natural", "--out", out, "--resume")
    refused(2, ["--force", "--resume"], *command, "--out", out, "--resume", "--force")
    refused(2, ["holds nothing of gradtool train"], *command, "--out", folder, "--resume")
    refused(2, ["is no folder"], *command, "--out", os.path.join(folder, "train-labels-idx1-ubyte"))
    made, notes = os.stat(os.path.join(out, "checkpoints/0-none-seed1.checkpoint")).st_mtime_ns, os.path.join(out, "notes.txt")
    with open(notes, "w") as file:
        file.write("mine")
    done = train(*command, "--out", out, "--force")
    check(done.returncode == 0 and os.path.exists(notes), f"{done}")  # what is not ours stays
    check(made != os.stat(os.path.join(out, "checkpoints/0-none-seed1.checkpoint")).st_mtime_ns, "--force did not train again")
    compare(out, expected, "trained twice")

    # The results that --force replaces are there until there is a new result: with no room for one, and after a kill before it.
    full = train(*command, "--out", out, "--force", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)))
    check(full.returncode == 4, f"{full}")
    compare(out, expected, "no room for a new training")
    aside = os.path.join(out, ".replaced")
    os.mkdir(aside)
    for name in ("settings.json", "train.csv", "summary.csv", "train.json", "checkpoints"):
        os.rename(os.path.join(out, name), os.path.join(aside, name))
    refused(2, ["exists already"], *command, "--out", out)
    check(not os.path.exists(aside), "what was set aside is not put back")
    compare(out, expected, "put back")
    held = os.open(out, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    for more in ((), ("--force",)):
        refused(2, ["another gradtool train writes there"], *command, "--out", out, *more)
    compare(out, expected, "refused beside another one")
    # A job that is started again waits for the one that still writes its checkpoint, unless it is stopped.
    for stop in (True, False):
        waiting = subprocess.Popen(line(*command, "--out", out, "--resume"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = waiting.stderr.readline()
        check("writes to" in said and "waiting for its end" in said, said)
        waiting.send_signal(signal.SIGTERM) if stop else os.close(held)
        waiting.communicate()
        check(waiting.returncode == (130 if stop else 0), f"{waiting.returncode}")
    compare(out, expected, "waited")
    path = os.path.join(out, "checkpoints/1-topk-seed2.checkpoint")
    with open(path, "r+b") as file:
        file.seek(5000)
        file.write(b"x")
    refused(3, ["1-topk-seed2.checkpoint", "damaged"], *command, "--out", out, "--resume")
    os.remove(path)
    done = train(*command, "--out", out, "--resume")
    check(done.returncode == 0, done.stderr)
    compare(out, expected, "one run made again")

    # One run diverges, and the others go on.
    far = os.path.join(folder, "far")
    done = train(*data, "--steps", "12", "--codec", "topk:ratio=0.5", "--lr", "1e5", "--seeds", "1,2", "--out", far)
    check(done.returncode == 0, done.stderr)
    check(all(r["status"] == "diverged" and r["train_loss"] in ("nan", "inf") for r in rows(far)), f"{rows(far)}")
    check(len(rows(far)) == 4 and "diverged with seed 1, 2" in done.stdout, done.stdout)
    check([r["diverged"] for r in rows(far, "summary.csv")] == ["2", "2"], "the summary hides it")

    before = rows(far), hashes(far)
    done = train(*data, "--steps", "12", "--codec", "topk:ratio=0.5", "--lr", "1e5", "--seeds", "1,2", "--out", far, "--resume")  # nothing is left to do
    check(done.returncode == 0 and (rows(far), hashes(far)) == before and "diverged with seed 1, 2" in done.stdout, f"{done}")

    # Weights that the last step has spoilt show in the test alone. An empty folder is as good as none.
    last = os.path.join(folder, "last")
    os.mkdir(last)
    done = train(*data, "--steps", "2", "--lr", "9e5", "--out", last)
    check(done.returncode == 0 and rows(last)[0]["status"] == "diverged" and rows(last)[0]["test_loss"] == "nan" and
          rows(last)[0]["train_loss"] != "nan", f"{rows(last)}")

    # A checkpoint in the place of another one.
    for name, to in (("0-none-seed1", "1-topk-seed1"), ("1-topk-seed1", "1-topk-seed2")):
        shutil.copytree(out, os.path.join(folder, to))
        shutil.copy(os.path.join(out, "checkpoints", name + ".checkpoint"), os.path.join(folder, to, "checkpoints", to + ".checkpoint"))
        refused(3, [to, "another run"], *command, "--out", os.path.join(folder, to), "--resume")

    # The trainer gives a method what it needs beside gradients.
    side = os.path.join(folder, "side")
    done = train(*data, "--steps", "4", "--codec", "iwp", "--codec", "vgc", "--micro-batches", "2", "--out", side)
    check(done.returncode == 0 and "no weights" not in done.stdout and "no second moments" not in done.stdout, f"{done}")

    # Factors of the learning rate: the first seed tries all of them, the others run with the best one and are judged.
    rates = os.path.join(folder, "rates")
    tries = [*data, "--epochs", "1", "--codec", "topk:ratio=0.1", "--lr-factors", "1,0.001,3", "--seeds", "1,2,3"]
    done = train(*tries, "--out", rates)
    check(done.returncode == 0 and "rate x" in done.stdout and "did best with seed 1, of 1, 0.001, 3" in " ".join(done.stdout.split()), f"{done}")
    table = rows(rates)
    check([(r["codec"], r["seed"], r["judged"]) for r in table] ==
          [(c, s, j) for c in ("none", "topk") for s, j in (*3 * [("1", "false")], ("2", "true"), ("3", "true"))], f"{table}")
    for codec in ("none", "topk"):
        tried = [r for r in table if r["codec"] == codec and r["seed"] == "1"]
        check([(r["lr_factor"], float(r["learning_rate"])) for r in tried] == [("1", 0.02), ("0.001", 0.02 * 0.001), ("3", 0.02 * 3)], f"{tried}")
        best = max(tried, key=lambda r: float(r["test_accuracy"]))["lr_factor"]
        check([r["lr_factor"] for r in table if r["codec"] == codec] == ["1", "0.001", "3", best, best], f"{codec}: not the best, {best}")
        row = next(r for r in rows(rates, "summary.csv") if r["codec"] == codec)
        judged = [float(r["test_accuracy"]) for r in table if r["codec"] == codec and r["judged"] == "true"]
        check(row["finished"] == "2" and row["lr_factor"] == best and abs(float(row["final_accuracy"]) - sum(judged) / 2) < 1e-12, f"{row}")
    with open(os.path.join(rates, "train.json")) as file:
        runs = json.load(file)["runs"]
    check([(r["lr_factor"], r["judged"], r["reached"]) for r in runs if r["codec"] == "none"][:3] == [(1, False, True), (0.001, False, True), (3, False, True)],
          f"{runs}")
    before = rows(rates)
    for name in ("1-topk-seed1-rate3", "0-none-seed3-rate" + table[0]["lr_factor"]):
        checkpoint = os.path.join(rates, "checkpoints", name + ".checkpoint")
        if os.path.exists(checkpoint):
            os.remove(checkpoint)
    os.remove(os.path.join(rates, "summary.csv"))
    done = train(*tries, "--out", rates, "--resume")
    check(done.returncode == 0 and rows(rates) == before, f"resumed with factors: {done}")
    refused(2, ["another command", "--lr-factors"], *tries[:-4], "--lr-factors", "1,0.5,3", "--seeds", "1,2,3", "--out", rates, "--resume")

    # A method with momentum of its own has an optimiser without it; none beside it keeps its own. Evaluating more often than at the ends of
    # epochs changes no weights either: two methods end with the same ones.
    often, seldom = os.path.join(folder, "often"), os.path.join(folder, "seldom")
    own = [*data, "--steps", "20", "--codec", "dgc:ratio=0.05", "--codec", "signsgd:momentum=0.9", "--codec", "topk:ratio=0.1", "--target-accuracy", "0.01"]
    for out, options in ((often, ["--momentum", "0.9", "--nesterov", "--evaluate-every", "6"]), (seldom, ["--momentum", "0"])):
        done = train(*own, *options, "--out", out)
        check(done.returncode == 0 and done.stdout.count("its momentum is its own") == 2 and "plain gradients" not in done.stdout, f"{done}")
    same = {key[0]: hashes(often)[key] == hashes(seldom)[key] for key in hashes(often)}
    check(same == {"none": False, "dgc": True, "signsgd": True, "topk": False}, f"{same}")
    check([r["step"] for r in rows(often)] == 4 * ["6", "12", "16", "18", "20"], f"{rows(often)}")
    check([r["epoch"] for r in rows(often)] == 4 * ["1", "1", "1", "2", "2"], f"{rows(often)}")
    check([r["steps_to_target"] for r in rows(often, "summary.csv")] == 4 * ["6"], f"{rows(often, 'summary.csv')}")
    refused(2, ["another command", "--evaluate-every"], *own, "--momentum", "0.9", "--nesterov", "--out", often, "--resume")

    # A warm-up of the learning rate is not what theta follows. vgc lacks what several micro-batches would give it. A folder that is not
    # there yet can be resumed.
    warm = os.path.join(folder, "warm")
    done = train(*data, "--steps", "12", "--lr-schedule", "warmup:6:constant", "--codec", "fft:theta=0.9,schedule=sqrt_lr", "--codec",
                 "fft:theta=0.9", "--codec", "vgc", "--out", warm, "--resume")
    check(done.returncode == 0 and len({r["payload_bytes"] for r in rows(warm) if r["codec"] == "fft" and r["step"] == "12"}) == 1, f"{rows(warm)}")
    check("no second moments" in done.stdout and "no training in" in done.stderr, f"{done}")

    spare = ["--out", os.path.join(folder, "spare")]
    refused(2, ["28 x 28", "--image-size"], *data, *spare, "--model", "alexnet")
    refused(2, ["--evaluate-every 0"], *data, *spare, "--evaluate-every", "0")
    refused(2, ["--model is missing"], *data, *spare, "--model", "")
    refused(2, ["--out FOLDER is missing"], *data)
    refused(2, ["--epochs", "--steps"], *data, *spare, "--epochs", "1", "--steps", "1")
    refused(2, ["--epochs 0"], *data, *spare, "--epochs", "0")
    refused(2, ["--seeds", "twice"], *data, *spare, "--seeds", "1,1")
    refused(2, ["--seeds", "-1"], *data, *spare, "--seeds=-1")
    for factors in ("0", "-1", "nan", "inf", "1,1", "1e9"):
        refused(2, ["--lr-factors"], *data, *spare, f"--lr-factors={factors}")
    refused(2, ["--lr-factors", "two seeds", "three"], *data, *spare, "--lr-factors", "1,0.5", "--seeds", "1,2")
    refused(2, ["--target-accuracy", "90"], *data, *spare, "--target-accuracy", "90")
    refused(2, ["qsgd"], *data, *spare, "--codec", "qsdg")
    refused(2, ["gather"], *data, *spare, "--codec", "qsgd", "--reduce", "sum")
    refused(2, ["2000", "256"], *data, *spare, "--batch-size", "1000")
    refused(2, ["--network", "2 workers"], *data, *spare, "--workers", "1", "--network", "1gbe")
    refused(2, ["--checkpoint-every"], *data, *spare, "--checkpoint-every", "0")
    refused(3, ["/no/such/folder"], "--data-dir", "/no/such/folder", *spare)
    check(not os.path.exists(spare[1]), "a command that was refused has made its folder")
print("ok")

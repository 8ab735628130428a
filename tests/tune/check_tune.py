"""`gradtool tune` finds what an exhaustive search finds, and what it prints can be measured again.

Usage: check_tune.py GRADTOOL CAPTURE
"""
import collections
import csv
import functools
import io
import json
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile

import h5py
import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from waiting import until_interruptible  # noqa: E402

GRADTOOL, CAPTURE = sys.argv[1:3]
# So slow that times are what is sent: they are the same in every run, however busy the machine is.
NETWORK = ["--network", "slow:alpha=30us,beta=0.1MBps", "--nodes", "8"]
LIMIT = 0.2


def run(*arguments):
    done = subprocess.run([GRADTOOL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout, done.stderr


def judged(row):
    """The error that the advice judges a row by."""
    delays = row["codec"] in ("topk", "powersgd")
    return float(row["cumulative_nmse" if delays else "nmse"])


def check_search(folder):
    record, table = folder / "tune.json", folder / "tune.csv"
    code, out, err = run("tune", CAPTURE, *NETWORK, "--codec", "topk,qsgd,powersgd,fp16", "--max-nmse", LIMIT,
                         "--budget", 600, "--json", record, "--csv", table)
    assert code == 0 and "wrote" in err, err
    assert max(map(len, (line for line in out.splitlines() if "gradtool bench" not in line))) <= 80, out
    tune = json.loads(record.read_text())["tune"]
    front = tune["front"]
    assert front and [one["codec"] for one in front] == [one["codec"] for one in sorted(front, key=lambda o: o["seconds"])]
    errors = [one["error"] for one in front]
    assert errors == sorted(errors, reverse=True) and errors[0] <= LIMIT, front
    assert {one["codec"] for one in front} <= set(tune["finalists"]) <= {trial["codec"] for trial in tune["trials"]}
    assert f"take {front[0]['codec']}" in " ".join(out.split()), out
    sizes = [one["settings"] for one in tune["rounds"]]
    assert len(sizes) == 6 and sizes[0] > sizes[1] >= sizes[-1], sizes
    steps = [one["steps"] for one in tune["rounds"]]
    assert steps == sorted(steps) and steps[-1] == json.loads(run("info", CAPTURE, "--json", "-")[1])["steps"], steps

    # Every command that is printed gives the same error and the same bytes, and is printed as it is in the record.
    rows = {row["codec"] + ":" + row["params"]: row for row in csv.DictReader(table.open()) if row["network"]}
    for one in front[:2]:
        assert one["command"] in out, one
        words = shlex.split(one["command"])
        assert words[0] == "gradtool", words
        again = csv.DictReader(io.StringIO(run(*words[1:], "-n", 1, "--csv", "-")[1]))
        again = [row for row in again if row["network"] and row["codec"] == one["codec"].split(":")[0]]
        assert len(again) == 1 and judged(again[0]) == one["error"], (one, again)
        found = rows[again[0]["codec"] + ":" + again[0]["params"]]
        # Finalists have short turns, but enough of them to say how noisy their times are.
        assert float(found["total_us_low"]) <= float(found["total_us_median"]) <= float(found["total_us_high"]), found
        for column in ("payload_bytes", "nmse", "cumulative_nmse", "wire_bytes_per_rank", "ranks"):
            assert found[column] == again[0][column], (column, found, again[0])
    return front[0]


def check_without_a_limit(folder):
    """Without --max-nmse the advice takes no codec with a memory that one phase shows, however small its error: the search looks for others as well."""
    record = folder / "unlimited.json"
    code, out, err = run("tune", CAPTURE, *NETWORK, "--codec", "topk,qsgd,powersgd,fp16", "--budget", 600, "--json", record)
    assert code == 0, err
    tune = json.loads(record.read_text())["tune"]
    sure = [one for one in tune["front"] if one["confidence"] != "needs a trial"]
    assert sure and {one["codec"].split(":")[0] for one in sure} <= {"qsgd", "fp16"} and len(sure) < len(tune["front"]), tune["front"]
    assert [one["error"] for one in sure] == sorted((one["error"] for one in sure), reverse=True), sure
    assert len([name for name in tune["finalists"] if name.startswith("qsgd")]) >= 2, tune["finalists"]
    said = " ".join(out.split())
    assert any(f"take {one['codec']}" in said for one in sure) and "needs a trial" in said, out


def check_against_everything(found):
    """The best of a dense grid, of which the search measured a part, is at most 5 % better."""
    ratios = ",".join(f"{0.001 * 1.06 ** i:.6f}" for i in range(96))
    ranks = ",".join(str(rank) for rank in range(1, 33))
    code, out, err = run("bench", CAPTURE, *NETWORK, "--codec", f"topk:ratio=[{ratios}]", "--codec",
                         "qsgd:bits=[2,3,4,5,6,7,8],bucket=[128,512,2048]", "--codec", f"powersgd:rank=[{ranks}]", "--codec",
                         "fp16", "--timing", "isolated", "-n", 1, "-w", 0, "--csv", "-")
    assert code == 0, err
    best = min(float(row["total_us_median"]) for row in csv.DictReader(io.StringIO(out))
               if row["network"] and row["codec"] not in ("none", "noop") and judged(row) <= LIMIT)
    assert found["seconds"] * 1e6 <= 1.05 * best, (found, best)


def check_trained(folder, found):
    """A training decides: a codec that lost there is not looked at, and one that learns is in the front however much it errs."""
    @functools.cache
    def full(spec):
        code, out, err = run("bench", "--synthetic", "4KB", "--ranks", 2, "--codec", spec, "--timing", "isolated", "-n", 1, "-w", 0, "--csv", "-")
        assert code == 0, err
        return next((row["codec"], row["params"]) for row in csv.DictReader(io.StringIO(out)) if row["codec"] not in ("none", "noop"))
    accuracies = {("none", "default"): 0.9, full(found): 0.6, full("topk:ratio=0.0001"): 0.9, full("sketch"): 0.9}
    runs = [{"codec": codec, "params": params, "seed": seed, "status": "finished"} for codec, params in accuracies for seed in (1, 2, 3)]
    rows = [{**run, "train_loss": 0.5, "test_accuracy": accuracies[run["codec"], run["params"]]} for run in runs]
    elements = json.loads(run("info", CAPTURE, "--json", "-")[1])["elements"]
    trained = {"format": "gradtool.train", "schema_version": 1, "elements": elements, "runs": runs, "rows": rows,
               "settings": {"--model": "m", "--dataset": "d", "--reduce": "auto", "--workers": "4", "the number of steps": "300"}}
    taught, record = folder / "train.json", folder / "taught.json"
    taught.write_text(json.dumps(trained))
    command = ["tune", CAPTURE, *NETWORK, "--codec", "topk,qsgd,powersgd,fp16", "--max-nmse", LIMIT, "--budget", 600]
    code, out, err = run(*command, "--trained", taught, "--json", record)
    assert code == 0, err
    tune, said = json.loads(record.read_text())["tune"], " ".join(out.split())
    specs = [full(one["codec"]) for one in tune["front"]]
    # A codec that is not searched does not come in by the training.
    assert full(found) not in specs and full("topk:ratio=0.0001") == specs[0] and not any(name == "sketch" for name, _ in map(full, tune["finalists"])), tune["front"]
    assert tune["trained"] == [str(taught)] and all(one["command"].endswith(f"--trained {taught}") for one in tune["front"]), tune["front"]
    assert "take topk:ratio=0.0001" in said and "it learns: its accuracy is worse by 0 points" in said and f"{full(found)[0]}:{full(found)[1]} loses (" in said, said
    # A setting that has lost is dropped before it is measured.
    assert not any(one["expected_error"] is not None and full(one["codec"]) == full(found) for one in tune["trials"]), tune["trials"]
    assert full(found) not in map(full, tune["finalists"]) and sum(one["lost"] for one in tune["rounds"]) >= 1, tune["rounds"]
    assert "Left out because of a loss in a trial" in said and not tune["left_out"], said
    # The settings of a trial take no more time than there is: 40 settings of 0.1 s at least are more than one second has.
    many = {("topk", f"ratio={i / 1000:g},index=auto"): 0.9 for i in range(1, 41)} | {("none", "default"): 0.9}
    runs = [{"codec": codec, "params": params, "seed": seed, "status": "finished"} for codec, params in many for seed in (1, 2, 3)]
    taught.write_text(json.dumps(trained | {"runs": runs, "rows": [{**run, "train_loss": 0.5, "test_accuracy": 0.9} for run in runs]}))
    code, out, err = run(*command[:-1], 1, "--trained", taught, "--json", record)
    tune = json.loads(record.read_text())["tune"]
    assert code == 0 and len(tune["left_out"]) >= 30 and set(tune["left_out"]).isdisjoint(tune["finalists"]), (err, tune["left_out"])
    assert "the budget had no room for them" in " ".join(out.split()), out
    taught.write_text(json.dumps(trained | {"elements": 7}))
    code, out, err = run(*command, "--trained", taught)
    assert code == 2 and out == "" and "train.json is a trial of a model of 7 parameters" in err, (code, out, err)


def check_windows(folder):
    """Gradients of rank 1 early in a training, of full rank late: every round looks at both, so PowerSGD deceives none."""
    rng = np.random.default_rng(3)
    scale = 1 + 0.1 * rng.standard_normal((8, 2, 1, 1))
    early = scale * np.outer(rng.standard_normal(64), rng.standard_normal(64))
    late = scale * rng.standard_normal((64, 64))
    capture, record = folder / "phases.h5", folder / "phases.json"
    with h5py.File(capture, "w") as file:
        file.attrs.update(format="gradtool.gradients", schema_version=1, complete=1, workers=2)
        file["steps/iteration"] = [*range(10, 18), *range(290, 298)]
        group = file.create_group("tensors/0000")
        group.attrs.update(name="w", kind="linear", layout="OI", shape=[64, 64])
        group["gradient"] = np.concatenate([early, late]).reshape(16, 2, 4096).astype("f4")
    code, _, err = run("tune", capture, *NETWORK, "--codec", "powersgd", "--max-nmse", LIMIT, "--budget", 600, "--json", record)
    assert code == 0, err
    tune = json.loads(record.read_text())["tune"]
    assert [one["steps"] for one in tune["rounds"]] == [4, 4, 8, 16, 16, 16], tune["rounds"]
    # Early gradients these ranks keep whole, of the late ones' 64 equal directions they lose most.
    low = [one for one in tune["trials"] if one["round"] == 1 and one["codec"] in ("powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=4")]
    assert len(low) == 3 and all(one["expected_error"] > 2 * LIMIT for one in low), low


def check_limits(folder):
    code, out, err = run("tune", CAPTURE, *NETWORK, "--codec", "topk:ratio=[0.01,0.1],index=u32", "--max-nmse", 0, "--budget", 60)
    said = " ".join(out.split())
    assert code == 0 and "No codec here has an error of at most 0." in said and "gradtool bench" not in out, (out, err)
    code, out, err = run("tune", CAPTURE, *NETWORK, "--codec", "topk:ratio=0.1,index=u32", "--markdown", "--max-nmse", 1)
    assert code == 0 and "| topk:ratio=0.1,index=u32 |" in out, (out, err)
    code, out, err = run("tune", CAPTURE, *NETWORK, "--budget", 1, "--max-nmse", 0.5, "--json", folder / "short.json")
    said = " ".join(out.split())
    assert code == 0 and "a larger --budget tries them" in said, (out, err)
    # The codecs that trainings found harmless have their turns before others.
    first = [trial["codec"].split(":")[0] for trial in json.loads((folder / "short.json").read_text())["tune"]["trials"] if trial["round"] == 1]
    assert first[:2] == ["fp16", "bf16"] and first.index("int8") < first.index("adacomp") < first.index("dion"), first
    # However far it comes: codecs that had no turn are named, and while there are any, no other had a second one.
    tune = json.loads((folder / "short.json").read_text())["tune"]
    assert ("There was no time to look at " + ", ".join(tune["untried"]) + " at all" in said) == bool(tune["untried"]), (said, tune["untried"])
    turns = collections.Counter(trial["codec"].split(":")[0] for trial in tune["trials"]
                                if trial["round"] == 1 and trial["expected_error"] is not None)
    assert not set(turns) & set(tune["untried"]) and (not tune["untried"] or set(turns.values()) <= {1}), (turns, tune["untried"])


def check_times_of_elsewhere(folder):
    """With a record's codec times only its settings can be the answer; the others are counted."""
    card, found = folder / "card.json", folder / "found.json"
    code, _, err = run("bench", CAPTURE, "--codec", "qsgd:bits=[4,8]", "--timing", "isolated", "-n", 2, "--json", card)
    assert code == 0, err
    code, out, err = run("tune", CAPTURE, *NETWORK, "--codec", "qsgd", "--max-nmse", 1, "--budget", 600, "--codec-speed", card,
                         "--library", "gloo", "--json", found)
    said = " ".join(out.split())
    assert code == 0 and f"were left out because {card} has no times of them" in said, (out, err)
    record = json.loads(found.read_text())
    tune = record["tune"]
    assert set(tune["finalists"]) <= {"qsgd:bits=4,bucket=512", "qsgd:bits=8,bucket=512"} and tune["front"] and not tune["untried"], tune
    assert all(one["measured"] + one["timeless"] == one["settings"] for one in tune["rounds"]), tune["rounds"]
    assert tune["rounds"][0]["measured"] == 2, tune["rounds"]
    assert all(f"--library gloo --codec-speed {card}" in one["command"] for one in tune["front"]), tune["front"]
    modelled = [row for row in record["rows"] if row["time_source"] == "modelled"]
    assert modelled and all(row["library"] == "gloo" and row["codec_times"] == "record" for row in modelled if row["codec"] != "noop"), modelled
    whole = json.loads(card.read_text())
    whole["rows"] = [row for row in whole["rows"] if row["codec"] != "none"]
    card.write_text(json.dumps(whole))
    code, out, err = run("tune", CAPTURE, *NETWORK, "--codec", "qsgd", "--codec-speed", card)
    assert code == 3 and out == "" and "has no times of none" in err, (code, out, err)


def check_interrupt(folder):
    """Ctrl-C recommends nothing: whenever it comes, the finalists were not measured in full."""
    record = folder / "interrupted.json"
    process = subprocess.Popen([GRADTOOL, "tune", CAPTURE, *NETWORK, "--budget", "600", "--json", record],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_interruptible(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130 and out == "" and err == "interrupted: nothing written\n", (process.returncode, out, err)
    assert not record.exists()


def check_refusals():
    for arguments, words in (([CAPTURE], ["--network"]),
                             ([CAPTURE, "--network", "10gbe", "--nodes", "2,4"], ["--nodes 2,4", "one number"]),
                             ([CAPTURE, *NETWORK, "--max-nmse", -1], ["--max-nmse"]),
                             ([CAPTURE, *NETWORK, "--budget", 0], ["--budget"]),
                             ([CAPTURE, *NETWORK, "--codec", "none"], ["--codec"]),
                             ([CAPTURE, *NETWORK, "--codec", "topkk"], ["did you mean 'topk'?"]),
                             ([CAPTURE, *NETWORK, "--codec-speed", "floor:-1"], ["--codec-speed 'floor:-1'"]),
                             ([CAPTURE, *NETWORK, "--codec-speed", "card.json", "--json", "card.json"], ["--codec-speed", "--json"]),
                             ([CAPTURE, *NETWORK, "--json", CAPTURE], ["--json"]),
                             ([CAPTURE, *NETWORK, "--markdown", "--json", "-"], ["--markdown"])):
        code, out, err = run("tune", *arguments)
        assert code == 2 and out == "" and len(err.splitlines()) <= 2, (arguments, code, out, err)
        for word in words:
            assert word in err, (arguments, word, err)


with tempfile.TemporaryDirectory() as scratch:
    check_refusals()
    best = check_search(pathlib.Path(scratch))
    check_against_everything(best)
    check_without_a_limit(pathlib.Path(scratch))
    check_trained(pathlib.Path(scratch), best["codec"])
    check_windows(pathlib.Path(scratch))
    check_limits(pathlib.Path(scratch))
    check_times_of_elsewhere(pathlib.Path(scratch))
    check_interrupt(pathlib.Path(scratch))
print("tune finds what everything finds")

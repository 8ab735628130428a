"""scripts/verdicts: verdicts follow from made-up CSVs by their rule, every trial has its arm, and a quick run on tiny data, killed and
gone on with, becomes pages that say what train.csv says.

Usage: check_verdicts.py GRADTOOL SOURCE_DIR
"""
import contextlib
import csv
import io
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest.mock

gradtool, root = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
scripts = os.path.join(root, "scripts", "verdicts")
sys.path[:0] = [scripts, os.path.join(root, "tests", "capture")]
try:
    import matplotlib  # noqa: F401
    import scipy  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import campaigns  # noqa: E402
import claims  # noqa: E402
import results  # noqa: E402
from pages import main as write_pages  # noqa: E402
from synthetic import check, run, write_images  # noqa: E402

SETTINGS = types.SimpleNamespace(quick=False, cifar="C", text="T", fashion_mnist="F")


def close(x, y, tolerance=1e-9):
    check(x is not None and abs(x - y) <= tolerance * max(1.0, abs(y)), f"{x} is not {y}")


def write_csv(path, rows):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def made_up(folder, changes, left_out=()):
    """A full run in which every arm has none's accuracy and a hundredth of its bytes, but for what `changes` says: {(campaign, arm):
    (accuracies of the three seeds, where None has diverged, payload ratio)}. Wire ratios are half of that, as of a gather among four."""
    states, arms = [], []
    for campaign in campaigns.all_campaigns(SETTINGS):
        ran = campaign.name not in left_out
        states.append({"campaign": campaign.name, "status": "complete" if ran else "not run", "reason": "" if ran else "not reached yet",
                       "model": campaign.model, "dataset": campaign.data[1], "workers": 4, "batch": campaign.batch, "steps": campaign.steps,
                       "seeds": "1 2 3", "elements": 1000, "steps_per_epoch": 2, "compared_with": campaign.compared_with or campaign.name, "gradtool": "gradtool",
                       "quick": 0, "command": f"gradtool train {campaign.name}"})
        if not ran:
            continue
        rows = []
        for arm in ("none", *campaign.arms):
            codec, _, params = arm.partition(":")
            arms.append({"campaign": campaign.name, "arm": arm, "codec": codec, "params": params or "default"})
            accuracies, ratio = changes.get((campaign.name, arm), ((0.80, 0.82, 0.81), 1 if arm == "none" else 100))
            for seed, accuracy in enumerate(accuracies, 1):
                for epoch in (1, 2):
                    rows.append({"codec": codec, "params": params or "default", "seed": seed, "epoch": epoch, "step": 10 * epoch,
                                 "status": "finished" if accuracy is not None else "diverged",
                                 "test_accuracy": accuracy if accuracy is not None and epoch == 2 else 0.1,
                                 "wire_bytes": 7e6 * epoch / (ratio if arm == "none" else ratio / 2), "payload_bytes": 7e6 * epoch / ratio})
        write_csv(os.path.join(folder, campaign.name, "train.csv"), rows)
    write_csv(os.path.join(folder, "campaigns.csv"), states)
    if arms:
        write_csv(os.path.join(folder, "arms.csv"), arms)


def pages(folder, out):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        check(write_pages([folder, "--out", out]) == 0, folder)
    return dict(line.split(None, 1) for line in said.getvalue().splitlines())


def read(*path):
    with open(os.path.join(*path)) as file:
        return file.read()


def arithmetic():
    mean, low, high = results.interval([-1.0, 0.0, 1.0])
    close(mean, 0)
    close(high, 4.302652729911275 / math.sqrt(3))  # the quantile from a table: two degrees of freedom
    close(low, -high)
    check(results.interval([2.0]) == (2.0, None, None), "an interval of one value")
    rising = [(f"c{i}", i, i * i) for i in range(8)]
    check(results.rank_correlation(rising)[0] > 0.999, "ranks that agree")
    rho, low, high = results.rank_correlation([("a", 1, 2), ("a", 2, 1), ("b", 3, 3), ("c", 4, 5), ("d", 5, 4)])
    close(rho, 1 - 6 * 4 / (5 * 24))  # the textbook's formula without ties
    check(low <= rho <= high, f"{rho} not in {low} to {high}")
    check(results.rank_correlation(rising[:3]) == (None, None, None), "three codecs are too few")
    check(results.safe_error([(0.1, 0.5), (0.2, 0.9), (0.3, 2.0), (0.4, 0.0)], 1.0) == 0.2, "the first that loses ends what is safe")
    check(results.safe_error([(0.1, 3.0), (0.1, 0.0), (0.2, 0.0)], 1.0) is None, "nothing is safe")


def three_words(folder):
    good, bad, noisy = (0.80, 0.82, 0.81), (0.77, 0.79, 0.78), (0.80, 0.80, 0.82)
    trials = [("lenet5", "natural"), ("gpt-nano", "natural")]  # what the claim is tested by, both with a ratio of at least 3.5
    cases = {
        "both": ({}, (), "holds"),
        "one": ({trials[0]: (bad, 4)}, (), "holds in part"),
        "none": ({trials[0]: (bad, 4), trials[1]: (bad, 4)}, (), "does not hold here"),
        "heavy": ({trials[0]: (good, 3.4)}, (), "holds in part"),
        "exact": ({trials[0]: (good, 3.5)}, (), "holds"),
        "diverged": ({trials[1]: ((0.80, None, 0.81), 4)}, (), "holds in part"),
        "close": ({trials[0]: (noisy, 4)}, (), "holds"),
        "alone": ({}, ("gpt-nano",), "holds"),
        "sure": ({trials[0]: ((0.802, 0.818, 0.81), 4)}, (), "holds"),  # around 0, and far from the limit
        "absent": ({trials[0]: (bad, 4)}, ("gpt-nano",), "does not hold here"),
        "nothing": ({}, tuple(c.name for c in campaigns.all_campaigns(SETTINGS)), "not run"),
    }
    for name, (changes, left_out, word) in cases.items():
        data, out = os.path.join(folder, name), os.path.join(folder, name + "-pages")
        made_up(data, changes, left_out)
        if name in ("heavy", "exact", "absent", "alone"):  # one rule, and no page of its own
            claim = next(c for c in claims.BASELINES if c.method == "natural")
            whole = results.Results(data)
            check(claims.verdict([claims.outcome(trial, whole) for trial in claim.trials]) == word, name)
            continue
        # Drawing takes longer than all else, and one case shows that it draws.
        with contextlib.nullcontext() if name == "both" else unittest.mock.patch("pages.forest"):
            found = pages(data, out)
        check(found["natural"] == word, f"{name}: {found['natural']} and not {word}")
        page = read(out, "natural.md")
        check(page.startswith(f"# natural: {word}\n"), page[:60])
        check(f"| **{word}** |" in next(line for line in read(out, "README.md").splitlines() if line.startswith("| [natural]")), "README")
        check(("**passes**, close" in page) == (name == "close"), f"{name}: a close call is told from a clear one")
        check(("diverged" in page) == (name == "diverged"), f"{name}: divergence is said")
        if name == "both":
            # Every trial has its arm in a full run, and others hold: nothing loses accuracy and all ratios are 100.
            whole = results.Results(data)
            for claim in claims.PAPERS + claims.BASELINES:
                check(all(claims.outcome(trial, whole) for trial in claim.trials), f"{claim.method}: a trial has no arm")
            check(len(claims.PAPERS) == 5 and len(claims.BASELINES) == 10, "fifteen claims")
            check(found["topk"] == "holds" and found["dgc"] == "holds in part", f"{found}")  # dgc's ratio of 270 is not reached
            again = os.path.join(folder, "again")
            pages(os.path.join(out, "data"), again)
            for file in os.listdir(out):
                check(file == "data" or read(out, file) == read(again, file), f"{file} is another one when written from the copied CSVs")
        if name == "one":
            check("| -3.00 | -3.00 to -3.00 |" in page and "| 4 | 3.5 (payload) | **fails** |" in page, page)


def real(folder):
    data, out = os.path.join(folder, "data"), os.path.join(folder, "run")
    os.mkdir(data)
    write_images(data, 256)
    write_images(data, 128, "t10k", seed=1)
    command = [sys.executable, os.path.join(scripts, "run.py"), "--gradtool", gradtool, "--fashion-mnist", data, "--out", out, "--quick"]
    part = ["--only", "lenet5-dlcp", "--only", "lenet5", "--only", "replay"]
    log = os.path.join(folder, "log")
    with open(log, "w") as file:
        first = subprocess.Popen([*command, *part], stderr=file)
        checkpoints = os.path.join(out, "lenet5", "checkpoints")
        while first.poll() is None and not (os.path.isdir(checkpoints) and len(os.listdir(checkpoints)) > 3):
            time.sleep(0.02)
        if first.poll() == 77:
            print(read(log).strip())
            sys.exit(77)
        check(first.poll() is None, f"ended before it could be killed: {read(log)}")
        first.send_signal(signal.SIGKILL)
        first.wait()
    done = run(*command, *part)
    check(done.returncode == 0, done.stderr)
    made = [os.stat(os.path.join(out, name, "train.json")).st_mtime_ns for name in ("lenet5", "lenet5-dlcp")]
    done = run(*command, *part)
    check(done.returncode == 0 and "gradtool train" not in done.stderr and "lenet5: complete" in done.stderr, done.stderr)
    check(made == [os.stat(os.path.join(out, name, "train.json")).st_mtime_ns for name in ("lenet5", "lenet5-dlcp")], "trained again")
    refused = run(*command, "--only", "lenet6")
    check(refused.returncode == 2 and "no campaign lenet6" in refused.stderr, refused.stderr)

    states = {row["campaign"]: row for row in results.read_csv(os.path.join(out, "campaigns.csv"))}
    check(states["lenet5"]["status"] == "complete" and "--text" in states["gpt-nano"]["reason"], f"{states}")
    check(data not in read(out, "campaigns.csv") and folder not in read(out, "campaigns.csv"), "a path of this machine")
    where = os.path.join(folder, "pages")
    words = pages(out, where)
    check(set(words.values()) <= {claims.HOLDS, claims.PART, claims.NOT, "not run"} and words["gradiveq"] == "not run", f"{words}")
    check("quick run" in read(where, "topk.md"), "a quick run must be called one")

    # topk's only trial that ran, from train.csv by hand.
    last = {}
    for row in results.read_csv(os.path.join(out, "lenet5", "train.csv")):
        last[row["codec"], row["params"], row["seed"]] = row
    gaps = [float(last["topk", "ratio=0.01,index=auto", s]["test_accuracy"]) - float(last["none", "default", s]["test_accuracy"]) for s in "12"]
    sent = [float(last["none", "default", s]["payload_bytes"]) / float(last["topk", "ratio=0.01,index=auto", s]["payload_bytes"]) for s in "12"]
    passes = 100 * sum(gaps) / 2 >= -1 and sum(sent) / 2 >= 50
    check(words["topk"] == (claims.HOLDS if passes else claims.NOT), f"{words['topk']}: {gaps} {sent}")
    line = next(line for line in read(where, "topk.md").splitlines() if line.startswith("| LeNet-5 |"))
    check(f"| {100 * sum(gaps) / 2 + 0.0:+.2f} |" in line, f"{line}: {gaps}")

    replayed = results.read_csv(os.path.join(where, "replay.csv"))
    check(len({row["arm"] for row in replayed}) > 30 and {row["moment"] for row in replayed} == {"early", "middle"}, f"{len(replayed)} rows")
    delays = {row["arm"]: row["delays"] for row in replayed}
    check([delays[arm] for arm in ("topk:ratio=0.01", "iwp:density=0.01,roots=1", "natural", "dlcp", "signsgd")] == list("11000"), f"{delays}")
    lost = {row["arm"]: float(row["lost"]) for row in results.read_csv(os.path.join(out, "losses.csv")) if row["moment"] == "early"}
    check(abs(lost["dlcp:model=iid,loss=0.3,bound=1"] - 0.3) < 0.1 and min(lost.values()) < 0.03, f"{lost}")


with tempfile.TemporaryDirectory() as folder:
    arithmetic()
    three_words(folder)
    real(folder)
print("verdicts follow from their rules")

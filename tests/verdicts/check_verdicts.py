"""scripts/verdicts: verdicts follow from made-up CSVs by their rule, every trial has its arm, and a quick run on tiny data, killed and
gone on with, becomes pages that say what train.csv says.

Usage: check_verdicts.py GRADTOOL SOURCE_DIR
"""
import contextlib
import csv
import io
import math
import os
import random
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
    import numpy as np
    import scipy.stats
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import campaigns  # noqa: E402
import claims  # noqa: E402
import predictor_page  # noqa: E402
import results  # noqa: E402
import run as verdicts_run  # noqa: E402
from pages import main as write_pages  # noqa: E402
from synthetic import check, run, write_images  # noqa: E402

BUILD = "gradtool 0.2.0 (1234567890ab-dirty, Release)"
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
                       "seeds": "1 2 3", "elements": 1000, "steps_per_epoch": 2, "compared_with": campaign.compared_with or campaign.name, "gradtool": BUILD,
                       "data_sha256": "a.bin:" + 64 * "7", "processor_hours": "1.5", "quick": 0, "command": f"gradtool train {campaign.name}"})
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


def pages(folder, out, *more):
    """more: further folders and options."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        check(write_pages([folder, *more, "--out", out]) == 0, folder)
    return dict(line.split(None, 1) for line in said.getvalue().splitlines())


def read(*path):
    with open(os.path.join(*path)) as file:
        return file.read()


def arms_of(rows, campaign="c"):
    """rows: {arm: accuracies of seeds 1, 2, ..., in points}."""
    return [results.Arm(campaign, name, name, {str(seed): value / 100 for seed, value in enumerate(values, 1)}, [], 1, 1, 1) for name, values in rows.items()]


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
    check(results.rank_correlation([(f"c{i}", 1.0, i) for i in range(8)]) == (None, None, None), "ranks that are all equal")
    check(all(map(math.isnan, results.rank_correlation([*rising, ("c", math.nan, 1)]))), "a point that is none")
    # Ties, codecs with several arms and an infinite error, against SciPy and a draw at a time.
    tied = [(f"c{i % 5}", min(i, 9) // 2 if i < 11 else math.inf, (i * 7) % 4) for i in range(12)]
    codecs, generator, drawn = [f"c{i}" for i in range(5)], np.random.default_rng(1), []
    for _ in range(50):
        points = [point for k in generator.integers(5, size=5) for point in tied if point[0] == codecs[k]]
        x, y = (scipy.stats.rankdata([point[i] for point in points]) for i in (1, 2))
        if np.ptp(x) > 0 and np.ptp(y) > 0:
            drawn.append(np.corrcoef(x, y)[0, 1])
    rho, low, high = results.rank_correlation(tied, draws=50)
    close(rho, scipy.stats.spearmanr([x for _, x, _ in tied], [y for _, _, y in tied])[0])
    close(low, np.percentile(drawn, 2.5))
    close(high, np.percentile(drawn, 97.5))
    check(results.safe_error([(0.1, 0.5), (0.2, 0.9), (0.3, 2.0), (0.4, 0.0)], 1.0) == 0.2, "the first that loses ends what is safe")
    check(results.safe_error([(0.1, 3.0), (0.1, 0.0), (0.2, 0.0)], 1.0) is None, "nothing is safe")

    # Holm by hand: of 0.01, 0.02, 0.03 and 0.04 the first is below 0.05/4, the second is not below 0.05/3, and there it stops.
    found = results.corrected([0.03, 0.01, 0.04, 0.02])
    check([rejected for rejected, _ in found] == [False, True, False, False], f"{found}")
    for (_, level), share in zip(found, (3, 4, 3, 3)):
        close(level, 1 - 0.05 / share)
    check([rejected for rejected, _ in results.corrected([0.04, 0.02])] == [True, True] and results.corrected([]) == [], "Holm goes on while it rejects")

    # A deviation by hand: the rests without means of arms and seeds are +-1 in two arms and 0 in two; degrees of freedom are (4 - 1) x (2 - 1).
    pools, alone = results.pools_of(arms_of({"none": (81, 83), "a": (80, 80), "b": (81, 82), "c": (80, 81)}), 0.82)
    check(len(pools) == 1 and not alone, f"{pools}")
    close(pools[0].residual, (2 * 0.5 ** 2 + 2 * 0.5 ** 2) / 3)
    check(pools[0].freedom == 3, f"{pools}")
    close(pools[0].between, 4 * 2 * 0.5 ** 2)
    rows = {f"a{i}": [80 + (i * 7 + seed * 3) % 5 / 10 for seed in range(3)] for i in range(8)}
    pools, alone = results.pools_of(arms_of({**rows, "wild": (70, 85, 84), "guess": (10, 10, 10), "far": (70, 71, 70)}), 0.8)
    check([len(pool.arms) for pool in pools] == [8] and sorted(alone) == ["far", "guess", "wild"], f"{pools} {alone}")
    # A seed that chose the learning rate does not judge.
    named = {"campaign": "c", "arm": "a:b=1", "codec": "a", "params": "b=1"}
    rows = [{"codec": "a", "params": "b=1", "seed": seed, "lr_factor": factor, "judged": judged, "step": 10, "status": "finished", "test_accuracy": accuracy,
             "payload_bytes": 10, "wire_bytes": 20} for seed, factor, judged, accuracy in (("6", "1", "false", 0.9), ("6", "0.5", "false", 0.95), ("1", "0.5", "true", 0.8))]
    arm = results.arm_of(named, rows)
    check(arm.accuracy == {"1": 0.8} and arm.rate == 0.5, f"{arm}")
    gap = results.Difference(-0.5, 0.25, 20, 3)
    close(gap.bounds()[0], -0.5 - 2.0859634472658364 * 0.25)  # the quantile from a table
    close(gap.p_value(gap.bounds(0.99)[1]), 0.01)
    close(results.Difference(0, 0.5, 1e7, 3).power(-1.0, 0.95), 0.5159678, 1e-4)  # of the normal distribution: 1 - Phi(1.96 - 2)
    close(results.together([(1.0, 2), (1.0, 2)])[1], 4)


def limits():
    """A limit that is fitted on some trainings and asked of another."""
    arms = [("a", 0.1, 0.0), ("b", 0.2, 0.5), ("c", 0.3, 2.0), ("d", 0.4, 0.0)]
    check(predictor_page.fitted_limit(arms) == 0.2, "one of three is more than one in twenty")
    check(predictor_page.fitted_limit([("a", 0.1, 2.0)] + [("b", 1 + i, 0.0) for i in range(19)]) == 19, "one of twenty is allowed")
    check(predictor_page.fitted_limit([("a", 0.1, 2.0), ("b", 0.2, 0.0)]) == 0.0, "no limit")
    check(predictor_page.fitted_limit([("a", 0.1, 0.0), ("b", 0.2, 3.1)] + [("c", 1 + i, 0.0) for i in range(40)]) == 0.1, "none more than three points")
    check(predictor_page.share(0, 10) == "0 of 10 (0 to 31 %)" and predictor_page.share(5, 5) == "5 of 5 (48 to 100 %)", "the table of Clopper and Pearson")

    def row(campaign, arm, phase, error, lost):
        return {"campaign": campaign, "model": campaign.removesuffix("-vgc"), "arm": arm, "codec": arm, "phase": phase, "steps": "24", "delays": "0", "unbiased": arm == "u", "lost": lost, "nmse": error,
                "cumulative_nmse": error, "update_nmse": error, "cosine_by_layer": error, "lasting": error}
    rows = [row(name, f"c{i}", phase, i / 100 + (phase == "middle") / 1000, 0.0 if i < 5 else 9.0) for name in ("lenet5", "lenet5-vgc", "gpt-nano")
            for i in range(1, 9) for phase in ("early", "middle")]
    rows += [row("resnet20", f"c{i}", "early", i / 100, 0.0 if i != 2 else 3.0) for i in range(1, 9)]
    text, sums = predictor_page.left_out(rows, "24")
    # LeNet-5 is left out with both of its campaigns: resnet20's second arm then allows no more than 0.011. Of ResNet-20 those up to 0.041 are taken.
    check("| nmse | lenet5 | 0.011 | 0 of 2 (0 to 84 %) | 6 of 8 (35 to 97 %) |" in text and "| nmse | resnet20 | 0.041 | 1 of 4 (1 to 81 %) | 4 of 7 (18 to 90 %) | +3.00 |" in text, text)
    check(sums["nmse"][0] == 1 and sums["nmse"][4] == 3.0, f"{sums}")
    # An unbiased codec that loses nothing is refused for what a biased one with less error has lost, unless each kind has its own limit.
    rows = [row(name, arm, "early", error, lost) for name in ("lenet5", "mlp") for arm, error, lost in (("b", 0.1, 9.0), ("u", 0.3, 0.0))]
    sums = predictor_page.left_out(rows, "24")[1]
    check(sums["nmse"] == (0, 0, 2, 2, 0) and sums[predictor_page.APART] == (0, 2, 0, 2, 0.0), f"{sums}")


def errors_that_come_again():
    """Errors of 24 steps that correlate by 0.1: their sum is 1 + 23 * 0.1 times as large as that of independent ones, and they count 1 + 18 * 0.1 times."""
    def row(arm, nmse, growth, delays="0", campaign="lenet5"):
        return {"campaign": campaign, "moment": "early", "arm": arm, "nmse": str(nmse), "cumulative_nmse": str(nmse * growth), "delays": delays}
    rows = [row("u:bits=4", 0.1, 2.0), row("b", 0.1, 2.0 * 3.3), row("m", 0.1, 0.5, "1"), row("u:ef=on", 0.1, 6.6, "1"), row("c", 0.1, 1.9), row("exact", 0.0, 0.0),
            row("b", 0.2, 2.0 * 3.3, campaign="lenet5-recent"), row("b", 0.1, 3.0, campaign="gru")]
    counted = results.lasting_errors(rows, {"u"}, "moment", lambda row: 24)
    for got, expected in zip(counted, (0.1, 0.28, 0.1, 0.1, 0.1, 0.0, 0.56, 0.55), strict=True):
        close(got, expected)


class MadeUp(results.Results):
    """Two campaigns of one pool each, whose arms all have the same expectation."""
    def __init__(self, generator, seeds=3):
        self.arms, self.pools, self.alone = {}, {}, {}
        for campaign in "cd":
            shared = [generator.gauss(0, 0.4) for _ in range(seeds)]
            arms = arms_of({f"a{i}": [80 + b + generator.gauss(0, 0.5) for b in shared] for i in range(6)}, campaign)
            self.arms[campaign] = {arm.name: arm for arm in arms}
            self.pools[campaign], self.alone[campaign] = [results.pool_of(arms)], []


def intervals_cover():
    """The intervals of 2,001 pairs of arms of 667 made-up campaigns have the true difference, 0, as often as they say, with the noise that seeds share."""
    generator, within, across, draws = random.Random(1), 0, 0, 667
    pairs = (("a0", "a1"), ("a2", "a3"), ("a4", "a5"))
    with unittest.mock.patch("scipy.stats.bartlett"):  # takes as long as all else, and no interval rests on it
        for one in (MadeUp(generator) for _ in range(draws)):
            for first, second in pairs:
                for other, campaign in ((0, "c"), (1, "d")):
                    low, high = one.difference(one.arms["c"][first], one.arms[campaign][second]).bounds()
                    if other:
                        across += low <= 0 <= high
                    else:
                        within += low <= 0 <= high
    within, across = within / draws / len(pairs), across / draws / len(pairs)
    check(abs(within - 0.95) < 0.015, f"{within} of the intervals cover within a campaign")
    check(0.94 < across < 0.995, f"{across} of the intervals cover across campaigns")


def three_words(folder):
    good, bad, worse = (0.80, 0.82, 0.81), (0.77, 0.79, 0.78), (0.60, 0.65, 0.45)
    trials = [("lenet5", "natural"), ("gpt-nano", "natural")]  # what the claim is tested by, both with a ratio of at least 3.5
    cases = {
        "both": ({}, (), "holds"),
        "one": ({trials[0]: (bad, 4)}, (), "holds in part"),
        "none": ({trials[0]: (bad, 4), trials[1]: (bad, 4)}, (), "does not hold here"),
        "heavy": ({trials[0]: (good, 3.4)}, (), "holds in part"),
        "exact": ({trials[0]: (good, 3.5)}, (), "holds"),
        "diverged": ({trials[1]: ((0.80, None, 0.81), 4)}, (), "holds in part"),
        "undecided": ({trials[0]: (worse, 4)}, (), "holds in part"),  # far below the limit, and its interval reaches across it
        "both undecided": ({trials[0]: (worse, 4), trials[1]: (worse, 4)}, (), "undecided"),
        "undecided and bad": ({trials[0]: (worse, 4), trials[1]: (bad, 4)}, (), "fails in part"),
        "alone": ({}, ("gpt-nano",), "holds"),
        "sure": ({trials[0]: ((0.802, 0.818, 0.81), 4)}, (), "holds"),  # around 0, and far from the limit
        "absent": ({trials[0]: (bad, 4)}, ("gpt-nano",), "does not hold here"),
        "nothing": ({}, tuple(c.name for c in campaigns.all_campaigns(SETTINGS)), "not run"),
    }
    for name, (changes, left_out, word) in cases.items():
        data, out = os.path.join(folder, name), os.path.join(folder, name + "-pages")
        made_up(data, changes, left_out)
        if name in ("heavy", "exact", "absent", "alone", "both undecided", "undecided and bad"):  # one rule, and no page of its own
            claim = next(c for c in claims.BASELINES if c.method == "natural")
            whole = results.Results(data)
            check(claims.verdict(claims.judge(claim, whole)) == word, name)
            continue
        # Drawing takes longer than all else, and one case shows that it draws.
        with contextlib.nullcontext() if name == "both" else unittest.mock.patch("pages.forest"):
            found = pages(data, out)
        check(found["natural"] == word, f"{name}: {found['natural']} and not {word}")
        page = read(out, "natural.md")
        check(page.startswith(f"# natural: {word}\n"), page[:60])
        check(f"| **{word}** |" in next(line for line in read(out, "README.md").splitlines() if line.startswith("| [natural]")), "README")
        check(("**undecided**" in page) == (name == "undecided"), f"{name}: what is not decided is called so")
        check(("every single seed misses the limit" in page) == (name == "undecided"), f"{name}: seeds that agree are told")
        check(("(a run diverged)" in page) == (name == "diverged"), f"{name}: divergence is said")
        if name == "both":
            # Every trial has its arm in a full run, and others hold: nothing loses accuracy and all ratios are 100.
            whole = results.Results(data)
            for claim in claims.PAPERS + claims.BASELINES:
                check(all(claims.judge(claim, whole)), f"{claim.method}: a trial has no arm")
            check(len(claims.PAPERS) == 5 and len(claims.BASELINES) == 11, "sixteen claims")
            check(found["topk"] == "holds" and found["dgc"] == "fails in part", f"{found}")  # its ratio of 270 is not reached, and the rest is undecided
            overview = read(out, "README.md")
            check("**not clean**" in overview and "a.bin 777777777777" in overview and "| 1.5 |" in overview, "build, hash and cost are said")
            check("What changed" not in overview, "there is nothing to compare with")
            again = os.path.join(folder, "again")
            pages(os.path.join(out, "data"), again)
            for file in os.listdir(out):
                check(file == "data" or read(out, file) == read(again, file), f"{file} is another one when written from the copied CSVs")
            # Trained in two parts, of which the second has one campaign of the first again.
            first, second, joined = (os.path.join(folder, part) for part in ("first", "second", "joined"))
            everything = [c.name for c in campaigns.all_campaigns(SETTINGS)]
            made_up(first, {trials[1]: (bad, 4)}, ("lenet5-fft", "resnet20"))
            made_up(second, {}, [c for c in everything if c not in ("lenet5-fft", "resnet20", "gpt-nano")])
            with unittest.mock.patch("pages.forest"):  # draws what stands in the table below it
                pages(first, joined, second)
            for file in os.listdir(out):
                check(file == "data" or file.endswith(".svg") or read(out, file) == read(joined, file), f"{file} is another one when written from two parts")
        if name == "one":
            check("| -3.00 | -3.00 to -3.00 | -3.00 to -3.00 | -1.0 | 4 | 3.5 (payload) |" in page and "| **fails** |" in page, page)
            # The earlier pages have one trial that is gone, and one whose word is another.
            earlier = results.read_csv(os.path.join(folder, "both-pages", "verdicts.csv"))
            write_csv(os.path.join(folder, "earlier.csv"), [*earlier, {**earlier[0], "says": "a trial that is gone", "limit": "7"}])
            with unittest.mock.patch("pages.forest"):
                pages(data, out, "--before", os.path.join(folder, "earlier.csv"))
                pages(os.path.join(out, "data"), os.path.join(folder, "one-again"))
            overview = read(out, "README.md")
            check(f"The same word as before: {len(earlier) - 1} of {len(earlier)} trials." in overview, overview)
            check("| natural | LeNet-5 | lenet5 | `natural` | holds | +0.00, +0.00 to +0.00 | fails | -3.00, -3.00 to -3.00 |" in overview, overview)
            check("a trial that is gone" in overview and "no trial any more" in overview, overview)
            check(read(folder, "one-again", "README.md") == overview, "what changed is another thing when written from the copied CSVs")


def real(folder):
    data, out = os.path.join(folder, "data"), os.path.join(folder, "run")
    os.mkdir(data)
    write_images(data, 256)
    write_images(data, 128, "t10k", seed=1)
    half = "import sys; sys.path[0] = sys.argv.pop(1); import campaigns, run; campaigns.QUICK['lenet5'] //= 2; sys.exit(run.main())"
    command = [sys.executable, "-c", half, scripts, "--gradtool", gradtool, "--fashion-mnist", data, "--out", out, "--quick"]
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
    states = {row["campaign"]: row for row in results.read_csv(os.path.join(out, "campaigns.csv"))}
    check(float(states["lenet5"]["processor_hours"]) > 0 and "train-images-idx3-ubyte" in states["lenet5"]["data_sha256"], f"{states['lenet5']}")
    made = [os.stat(os.path.join(out, name, "train.json")).st_mtime_ns for name in ("lenet5", "lenet5-dlcp")]
    done = run(*command, *part)
    check(done.returncode == 0 and "gradtool train" not in done.stderr and "lenet5: complete" in done.stderr, done.stderr)
    check(made == [os.stat(os.path.join(out, name, "train.json")).st_mtime_ns for name in ("lenet5", "lenet5-dlcp")], "trained again")
    done = run(*command, "--only", "lenet5-fft", "--hours", "1e-6")
    check(done.returncode == 130 and "the same command goes on" in done.stderr, done.stderr)
    with unittest.mock.patch("sys.stderr", io.StringIO()):
        # However soon the hours end, and whether or not the program has heard of signals, the word is 130.
        for hours in (1e-9, 1e-5):
            options = types.SimpleNamespace(hours=hours, ends=time.monotonic() + 3600 * hours)
            try:
                status = verdicts_run.call([sys.executable, "-c", "import time; time.sleep(600)"], options, quiet=True)
            except SystemExit as stopped:
                status = stopped.code
            check(status == 130, f"{hours} hours ended with {status}")
    done = run(*command, "--list")
    check(done.returncode == 0 and "processor hours" in done.stdout, done.stderr)
    refused = run(*command, "--hours", "0")
    check(refused.returncode == 2 and "--hours 0 has to be more than 0" in refused.stderr, refused.stderr)
    refused = run(*command, "--only", "lenet6")
    check(refused.returncode == 2 and "no campaign lenet6" in refused.stderr, refused.stderr)

    states = {row["campaign"]: row for row in results.read_csv(os.path.join(out, "campaigns.csv"))}
    check(states["lenet5"]["status"] == "complete" and "--text" in states["gpt-nano"]["reason"], f"{states}")
    check(data not in read(out, "campaigns.csv") and folder not in read(out, "campaigns.csv"), "a path of this machine")
    where = os.path.join(folder, "pages")
    words = pages(out, where)
    check(set(words.values()) <= {claims.HOLDS, claims.PART, claims.PART_FAILS, claims.NOT, claims.UNDECIDED, "not run"} and words["gradiveq"] == "not run", f"{words}")
    check("quick run" in read(where, "topk.md"), "a quick run must be called one")

    # topk's only trial that ran, from train.csv by hand.
    last = {}
    for row in results.read_csv(os.path.join(out, "lenet5", "train.csv")):
        last[row["codec"], row["params"], row["seed"]] = row
    gaps = [float(last["topk", "ratio=0.01,index=auto", s]["test_accuracy"]) - float(last["none", "default", s]["test_accuracy"]) for s in "12"]
    sent = [float(last["none", "default", s]["payload_bytes"]) / float(last["topk", "ratio=0.01,index=auto", s]["payload_bytes"]) for s in "12"]
    check(words["topk"] in ((claims.HOLDS, claims.UNDECIDED, claims.NOT) if sum(sent) / 2 >= 50 else (claims.NOT,)), f"{words['topk']}: {gaps} {sent}")
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
    limits()
    errors_that_come_again()
    intervals_cover()
    three_words(folder)
    real(folder)
print("verdicts follow from their rules")

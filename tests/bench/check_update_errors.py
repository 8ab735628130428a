"""bench --update-error: update_nmse and cosine_by_layer are what NumPy makes of --reconstruction, for SGD and Adam, by tensor and by window, and
do not depend on how many steps of a training were captured.

Usage: check_update_errors.py GRADTOOL
"""
import csv
import io
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np

GRADTOOL = sys.argv[1]
RANKS, STEPS, SUMMED = 3, 100, 8
SHAPES = {"conv.weight": (8, 4, 3, 3), "fc.weight": (40, 50), "fc.bias": (40,)}


def made_up(count):
    """Gradients that turn slowly, with the noise of mini-batches: {name: steps x ranks x elements}."""
    rng, found = np.random.default_rng(5), {}
    for name, shape in SHAPES.items():
        n = int(np.prod(shape))
        scale, slow = np.exp(rng.standard_normal(n)), np.empty((count, n))
        slow[0] = rng.standard_normal(n)
        for t in range(1, count):
            slow[t] = 0.98 * slow[t - 1] + np.sqrt(1 - 0.98 ** 2) * rng.standard_normal(n)
        found[name] = 1e-3 * scale * (slow[:, None] + 2 * rng.standard_normal((count, RANKS, n)))
    return found


def trained(before, count, batch=16, rate=0.02, momentum=0.9):
    """Gradients of a training, of a network with one hidden layer that learns to tell ten clouds of points, after `before` steps."""
    rng = np.random.default_rng(2)
    centres = 0.35 * rng.standard_normal((10, 40))
    weights = {"hidden": 0.2 * rng.standard_normal((60, 40)), "out": 0.15 * rng.standard_normal((10, 60)), "bias": np.zeros(10)}
    moments, found = {name: np.zeros_like(w) for name, w in weights.items()}, {name: [] for name in weights}
    for step in range(before + count):
        ranks = []
        for _ in range(RANKS):
            labels = rng.integers(10, size=batch)
            inputs = centres[labels] + rng.standard_normal((batch, 40))
            hidden = np.maximum(inputs @ weights["hidden"].T, 0)
            scores = hidden @ weights["out"].T + weights["bias"]
            share = np.exp(scores - scores.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            share[np.arange(batch), labels] -= 1
            share /= batch
            ranks.append({"out": share.T @ hidden, "bias": share.sum(0), "hidden": ((share @ weights["out"]) * (hidden > 0)).T @ inputs})
        for name in weights:
            if step >= before:
                found[name].append([rank[name].ravel() for rank in ranks])
            moments[name] = momentum * moments[name] + np.mean([rank[name] for rank in ranks], axis=0)
            weights[name] = weights[name] - rate * moments[name]
    return {name: np.array(values) for name, values in found.items()}, {name: w.shape for name, w in weights.items()}


def write_capture(path, optimizer, iterations, gradients=None, shapes=None):
    shapes, gradients = shapes or SHAPES, gradients or made_up(len(iterations))
    with h5py.File(path, "w") as f:
        f.attrs.update(dict(format="gradtool.gradients", schema_version=1, complete=1, producer="test", created="2026-01-01T00:00:00Z",
                            model="synthetic", dataset="none", optimizer=optimizer, seed=7, workers=RANKS, batch_size=1,
                            micro_batches=1, command="check_update_errors.py"))
        f["steps/iteration"] = np.asarray(iterations, dtype="i8")
        f["steps/learning_rate"] = np.full(len(iterations), 0.1)
        for i, (name, shape) in enumerate(shapes.items()):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update(dict(name=name, kind="other", layout=""))
            group.attrs["shape"] = np.array(shape, dtype="i8")
            group["gradient"] = gradients[name].astype("f4")


def bench(capture, codec, *flags, write=False):
    out = os.path.join(os.path.dirname(capture), "reconstruction.h5")
    if os.path.exists(out):
        os.remove(out)
    more = ("--reconstruction", out) if write else ()
    text = subprocess.run([GRADTOOL, "bench", capture, "--codec", codec, "--csv", "-", "--per-tensor", "--timing", "isolated", "-n", "1", "-w", "0", *more, *flags],
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    return {r["tensor"]: r for r in csv.DictReader(io.StringIO(text)) if r["codec"] == codec.split(":")[0]}


def read(path):
    with h5py.File(path, "r") as f:
        return {g.attrs["name"]: g["gradient"][...].astype("f8").mean(axis=1) for g in f["tensors"].values()}


def updates(gradients, rule):
    first, second, out = np.zeros_like(gradients[0]), np.zeros_like(gradients[0]), []
    for t, g in enumerate(gradients, 1):
        if rule["name"] == "adam":
            first = rule["beta1"] * first + (1 - rule["beta1"]) * g
            second = rule["beta2"] * second + (1 - rule["beta2"]) * g * g
            out.append(first / (1 - rule["beta1"] ** t) / (np.sqrt(second / (1 - rule["beta2"] ** t)) + rule["epsilon"]))
        else:
            first = rule["momentum"] * first + g
            out.append(g + rule["momentum"] * first if rule.get("nesterov") else first)
    return np.array(out)


def expected(x, y, names, windows, rule, received_rule):
    """Both columns over some tensors, each of the window where it is largest."""
    found = []
    for begin, end in windows:
        error = energy = 0.0
        distances = []
        for name in names:
            a, b = x[name][begin:end], y[name][begin:end]
            u, v = updates(a, rule), updates(b, received_rule)
            error, energy = error + ((u - v) ** 2).sum(), energy + (u ** 2).sum()
            p, q = a[:SUMMED].sum(axis=0), b[:SUMMED].sum(axis=0)
            distances.append(1 - p @ q / np.sqrt((p @ p) * (q @ q)))
        found.append((error / energy, np.mean(distances)))
    return [max(column) for column in zip(*found)]


def close(what, got, wanted):
    assert abs(float(got) - wanted) <= 2e-5 * abs(wanted) + 1e-9, f"{what}: {got} in the table, {wanted} by NumPy"


def check_against_numpy(folder):
    sgd = "sgd:learning_rate=0.1,momentum=0.9,weight_decay=0.0001,schedule=constant"
    rules = [(sgd, "file", {"name": "sgd", "momentum": 0.9}),
             (sgd.replace("0.9", "0.9,nesterov=1"), "file", {"name": "sgd", "momentum": 0.9, "nesterov": True}),
             ("adamw:learning_rate=0.001,beta1=0.8,beta2=0.95,epsilon=1e-06,weight_decay=0.01,schedule=milestones:5,20:0.1", "file",
              {"name": "adam", "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}),
             ("AdamW", "file", {"name": "adam", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}),
             ("lion", "sgd:momentum=0.5", {"name": "sgd", "momentum": 0.5})]
    # Two windows, the first with more steps than are summed, the second with fewer.
    iterations, windows = [*range(10, 30), *range(50, 55)], [(0, 20), (20, 25)]
    path = os.path.join(folder, "windows.h5")
    for optimizer, option, rule in rules:
        write_capture(path, optimizer, iterations)
        x = read(path)
        for codec in ("topk:ratio=0.1", "qsgd:bits=3", "dgc:ratio=0.1"):
            rows = bench(path, codec, "--update-error", option, write=True)
            y = read(os.path.join(folder, "reconstruction.h5"))
            # The momentum is in what dgc sends, so that SGD has none.
            lost = max((np.sign(x[n]) != np.sign(y[n])).mean() for n in SHAPES if 100 * x[n][0].size >= sum(v[0].size for v in x.values()))
            if optimizer.startswith("sgd"):  # whose updates small values hardly matter to
                assert rows["all"]["lost_signs"] == "", rows["all"]
            else:
                close(f"{codec} {optimizer} lost_signs", rows["all"]["lost_signs"], lost)
            received = {"name": "sgd", "momentum": 0.0} if codec.startswith("dgc") and rule["name"] == "sgd" else rule
            for tensor in (*SHAPES, "all"):
                update, distance = expected(x, y, SHAPES if tensor == "all" else [tensor], windows, rule, received)
                close(f"{codec} {optimizer} {tensor} update_nmse", rows[tensor]["update_nmse"], update)
                close(f"{codec} {optimizer} {tensor} cosine_by_layer", rows[tensor]["cosine_by_layer"], distance)
    exact = bench(path, "none", "--update-error", "adam")["all"]
    assert float(exact["update_nmse"]) < 1e-10 and float(exact["cosine_by_layer"]) < 1e-10, exact
    plain = bench(path, "topk:ratio=0.1")["all"]
    assert plain["update_nmse"] == plain["cosine_by_layer"] == "", plain


def check_length(folder):
    path = os.path.join(folder, "long.h5")
    write_capture(path, "sgd:learning_rate=0.02,momentum=0.9,weight_decay=0,schedule=constant", range(STEPS), *trained(100, STEPS))
    falls = {}
    for codec in ("efsignsgd", "onebit", "topk:ratio=0.1", "qsgd:bits=4", "terngrad"):
        for rule in ("file", "adam"):
            rows = [bench(path, codec, "--update-error", rule, "--steps", f"0:{steps - 1}")["all"] for steps in (10, 24, STEPS)]
            found = [float(row["update_nmse"]) for row in rows]
            assert max(found) < 1.75 * min(found), f"{codec} {rule}: update_nmse is {found} of 10, 24 and {STEPS} steps"
            assert len({row["cosine_by_layer"] for row in rows}) == 1, f"{codec}: cosine_by_layer of 10, 24 and {STEPS} steps differs"
            falls[codec] = float(rows[0]["cumulative_nmse"]) / float(rows[-1]["cumulative_nmse"])
    assert falls["efsignsgd"] > 3, falls  # the accumulated error of the same steps does depend on their number


def check_refusals(folder):
    path = os.path.join(folder, "unknown.h5")
    write_capture(path, "lion", range(4))
    for flags, said in ((("--update-error", "file"), "records 'lion' as its optimizer"), (("--update-error", "momentum"), "'momentum' is not valid"),
                        (("--update-error", "sgd"), "'sgd' is not valid"), (("--update-error", "adam:beta1=x"), "is not valid")):
        done = subprocess.run([GRADTOOL, "bench", path, "--codec", "topk", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2 and said in done.stderr, (flags, done.returncode, done.stderr)
    done = subprocess.run([GRADTOOL, "bench", "--synthetic", "1KB", "--codec", "topk", "--update-error", "file"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "and there is none" in done.stderr, done.stderr


with tempfile.TemporaryDirectory() as scratch:
    check_against_numpy(scratch)
    check_length(scratch)
    check_refusals(scratch)
print("updates are those of NumPy")

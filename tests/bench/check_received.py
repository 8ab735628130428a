"""Rows of --received: the errors of what a codec reconstructs are those of the codec to the last digit, those of a method in NumPy are NumPy's,
nothing that was not measured is in them, and a file that does not go with the capture is refused in a sentence.

Usage: check_received.py GRADTOOL SOURCE_DIR
"""
import csv
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import h5py
import numpy as np

GRADTOOL, RANKS = sys.argv[1], 3
ITERATIONS = [10, 11, 12, 50, 51, 52, 53]  # two windows
WINDOWS = [slice(0, 3), slice(3, 7)]
SHAPES = {"conv.weight": (8, 4, 3, 3), "conv.bias": (8,), "fc.weight": (40, 50), "tiny": (2,)}
ERRORS = ["nmse", "snr_db", "cosine", "relative_bias", "max_abs_error", "sign_agreement", "zeroed_fraction", "psnr_db", "nrmse", "cumulative_nmse",
          "error_correlation", "worst_nmse", "stride", "windows"]
SAME = ["status", "file", "model", "tensor", "granularity", "elements", "first_step", "last_step", "ranks", "dtype", "quantity", "op", "raw_bytes",
        "baseline_dtype", *ERRORS]
# All that a row of --received may have: what it is about, and its errors.
FILLED = {*SAME, "schema_version", "run_id", "codec", "params", "params.file", "time_source", "timing", "pipeline", "worst_window_first_step",
          "averaged"}


def write(path, values, iterations=ITERATIONS, names=None):
    """A gradient file of `values`, [steps, workers, elements] by tensor, in the order of `names`."""
    with h5py.File(path, "w") as f:
        workers = next(iter(values.values())).shape[1]
        f.attrs.update(dict(format="gradtool.gradients", schema_version=1, complete=1, producer="test", created="2026-01-01T00:00:00Z", model="synthetic",
                            dataset="none", optimizer="sgd", seed=7, workers=workers, batch_size=1, micro_batches=1, command="check_received.py"))
        f["steps/iteration"] = np.array(iterations, dtype="i8")
        for i, name in enumerate(names or values):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update(dict(name=name, kind="other", layout=""))
            group.attrs["shape"] = np.array(SHAPES.get(name, (values[name].shape[2],)), dtype="i8")
            group["gradient"] = values[name].astype("f4")
    return path


def bench(folder, capture, *flags):
    """Rows by codec, of the first timing, and rows of steps."""
    table, steps = folder / "rows.csv", folder / "steps.csv"
    subprocess.run([GRADTOOL, "bench", capture, "-n", "1", "--csv", table, "--steps-csv", steps, "--per-tensor", *flags], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    by_codec = []
    for path in (table, steps):
        with open(path, newline="") as file:
            by_codec.append({})
            for row in csv.DictReader(file):
                if row["timing"] == "isolated":
                    by_codec[-1].setdefault(row["codec"], []).append(row)
    return by_codec


def check_round_trip(folder, capture):
    """A codec's result, written and read as --received, in units of several kinds and in parts of the model."""
    for codec, delays in (("qsgd:bits=4", False), ("topk:ratio=0.1", True), ("powersgd", True)):
        for flags in (["--granularity", "tensor"], ["--granularity", "bucket:4KB"], ["--granularity", "model", "--ranks", "2"],
                      ["--layers", "weight|tiny"], ["--op", "reduce-scatter"]):
            if codec == "powersgd" and "--op" in flags:
                continue  # it has no reduce-scatter
            means = folder / "means.h5"
            means.unlink(missing_ok=True)
            bench(folder, capture, "--codec", codec, "--reconstruction", means, *flags)
            rows, steps = bench(folder, capture, "--codec", codec, "--received", means, *flags)
            ours, theirs = rows[codec.split(":")[0]], rows["received"]
            assert len(ours) == len(theirs) > 1, (codec, flags, len(ours), len(theirs))
            for mine, other in zip(ours, theirs):
                assert other["params"] == "file=means.h5", other
                for column in SAME + ([] if delays else ["worst_window_first_step"]):
                    assert mine[column] == other[column], (codec, flags, mine["tensor"], column, mine[column], other[column])
                assert {column for column, cell in other.items() if cell} <= FILLED, {c: v for c, v in other.items() if v and c not in FILLED}
                assert other["nmse"] and float(other["nmse"]) > 0, other
            for mine, other in zip(steps[codec.split(":")[0]], steps["received"], strict=True):
                for column in ("iteration", "nmse", "cosine", "cumulative_nmse", "window"):
                    assert mine[column] == other[column], (codec, flags, column, mine, other)


def close(what, got, expected):
    assert got != "" and abs(float(got) - expected) <= 1e-9 * max(abs(expected), 1e-12), f"{what}: {got} in the table, {expected} by NumPy"


def nmse(x, y):
    return ((x - y) ** 2).sum() / (x ** 2).sum()


def correlation(errors):
    """The mean over all pairs of steps of e_s.e_t, relative to the mean over steps of e_s.e_s."""
    products = errors @ errors.T
    return products[~np.eye(len(errors), dtype=bool)].mean() / np.diag(products).mean()


def check_against_numpy(folder, capture, gradients):
    """A method of NumPy alone: each rank's largest quarter. The file has the tensors in another order."""
    kept = {}
    for name, g in gradients.items():
        least = np.sort(np.abs(g), axis=2)[:, :, -max(1, g.shape[2] // 4)]
        kept[name] = np.where(np.abs(g) >= least[:, :, None], g, 0).mean(axis=1, dtype="f8", keepdims=True)
    path = write(folder / "numpy.h5", kept, names=sorted(SHAPES))
    record, page = folder / "record.json", folder / "page.html"
    rows, _ = bench(folder, capture, "--codec", "none", "--received", path, "--received-bytes", "1000", "--json", record)
    exact = {name: g.mean(axis=1, dtype="f8") for name, g in gradients.items()}
    brought = {name: y[:, 0].astype("f4").astype("f8") for name, y in kept.items()}
    assert [r["tensor"] for r in rows["received"]] == ["all", *SHAPES], rows["received"]
    for row in rows["received"]:
        names = SHAPES if row["tensor"] == "all" else [row["tensor"]]
        x, y = (np.concatenate([v[n] for n in names], axis=1) for v in (exact, brought))
        what = f"numpy.h5 {row['tensor']} "
        close(what + "nmse", row["nmse"], nmse(x, y))
        close(what + "snr_db", row["snr_db"], -10 * math.log10(nmse(x, y)))
        close(what + "cosine", row["cosine"], (x * y).sum() / math.sqrt((x ** 2).sum() * (y ** 2).sum()))
        close(what + "relative_bias", row["relative_bias"], (x * y).sum() / (x ** 2).sum() - 1)
        close(what + "max_abs_error", row["max_abs_error"], np.abs(x - y).max())
        close(what + "sign_agreement", row["sign_agreement"], (np.sign(x) == np.sign(y))[y != 0].mean())
        close(what + "zeroed_fraction", row["zeroed_fraction"], ((y == 0) & (x != 0)).mean())
        close(what + "nrmse", row["nrmse"], math.sqrt(((x - y) ** 2).mean()) / (x.max() - x.min()))
        close(what + "cumulative_nmse", row["cumulative_nmse"], max(nmse(x[w].sum(axis=0), y[w].sum(axis=0)) for w in WINDOWS))
        if row["tensor"] != "all":
            assert not row["payload_bytes"], row
            continue
        close(what + "error_correlation", row["error_correlation"], max(correlation(y[w] - x[w]) for w in WINDOWS))
        worst = max(WINDOWS, key=lambda w: nmse(x[w], y[w]))
        close(what + "worst_nmse", row["worst_nmse"], nmse(x[worst], y[worst]))
        assert row["worst_window_first_step"] == str(ITERATIONS[worst.start]), row
        assert row["payload_bytes"] == "1000" and not row["wire_bytes_per_rank"] and not row["payload_bytes_max"], row
        close("payload_ratio", row["payload_ratio"], 4 * sum(math.prod(s) for s in SHAPES.values()) / 1000)
    data = json.loads(record.read_text())
    assert [r["path"] for r in data["received"]] == [str(path)] and len(data["received"][0]["sha256"]) == 64, data["received"]
    mine = next(r for r in data["rows"] if r["codec"] == "received" and r["tensor"] == "all")
    assert mine["name"] == "received:file=numpy.h5" and len(mine["steps"]) == len(ITERATIONS) and "samples_us" not in mine, mine
    assert mine["encode_us_median"] is None and mine["total_us_median"] is None and mine["threads"] is None, mine
    made = subprocess.run([GRADTOOL, "report", record, "--out", page], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if "report is not built in" in made.stderr:
        print("no page: this build has no charts")
    else:
        assert made.returncode == 0 and "received:file=numpy.h5" in page.read_text(), made.stderr
    compared = subprocess.run([GRADTOOL, "compare", record, record, "--no-times"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "received" not in compared, compared


def check_manual(folder, manual):
    """The script of docs/measuring.md makes a file that is taken."""
    script = re.search(r"## Methods in other programs\n.*?```python\n(.*?)```", manual.read_text(), re.S).group(1)
    subprocess.run([sys.executable, "-c", script], check=True, cwd=folder)
    rows, _ = bench(folder, folder / "capture.h5", "--codec", "none", "--received", folder / "mine.h5")
    assert rows["received"][0]["status"] == "ok" and 0 < float(rows["received"][0]["nmse"]) < 1, rows["received"][0]


def check_refusals(folder, capture, gradients):
    means = {name: g.mean(axis=1, keepdims=True) for name, g in gradients.items()}
    some = {name: means[name] for name in list(SHAPES)[:2]}
    wrong = {**means, "tiny": np.ones((len(ITERATIONS), 1, 2))}
    other = write(folder / "other.h5", wrong)
    with h5py.File(other, "a") as f:
        f["tensors/0003"].attrs["shape"] = np.array([2, 1], dtype="i8")
    good = write(folder / "good.h5", means)
    (folder / "again").mkdir()
    twin = write(folder / "again/good.h5", means)

    def refused(status, words, *flags):
        done = subprocess.run([GRADTOOL, "bench", capture, "-n", "1", "--codec", "none", *flags], capture_output=True, text=True)
        assert done.returncode == status and words in done.stderr and done.stderr.count("\n") == 1, (flags, done.returncode, done.stderr)

    refused(3, "lacks tensor 'fc.weight'", "--received", write(folder / "some.h5", some))
    refused(3, "has a tensor 'extra', which", "--received", write(folder / "more.h5", {**means, "extra": np.ones((len(ITERATIONS), 1, 5))}))
    refused(3, "the shape [2, 1], but in", "--received", other)
    refused(3, "has 3 workers, but", "--received", capture)
    refused(3, "lacks the step of iteration 53", "--received", write(folder / "short.h5", {n: m[:-1] for n, m in means.items()}, ITERATIONS[:-1]))
    refused(3, "has a step of iteration 54, which", "--received", write(folder / "late.h5", means, [*ITERATIONS[:-1], 54]))
    refused(3, "in another order", "--received", write(folder / "order.h5", means, [11, 10, *ITERATIONS[2:]]))
    refused(3, "absent.h5", "--received", folder / "absent.h5")
    refused(2, "2 --received and 1 --received-bytes", "--received", good, "--received", other, "--received-bytes", "7")
    refused(2, "has the name of another one", "--received", good, "--received", twin)
    refused(2, "--op all-gather", "--received", good, "--op", "all-gather")
    refused(2, "the same file as the input --received", "--received", good, "--csv", good)
    # Tensors that are not replayed need not be there. Two files make two rows.
    rows, _ = bench(folder, capture, "--codec", "none", "--layers", "conv", "--received", folder / "some.h5", "--received", good)
    assert [r["params"] for r in rows["received"] if r["tensor"] == "all"] == ["file=some.h5", "file=good.h5"], rows["received"]
    # A mean that is not finite has no error that could be compared.
    bad = {**means, "tiny": np.full((len(ITERATIONS), 1, 2), np.nan)}
    rows, _ = bench(folder, capture, "--codec", "none", "--received", write(folder / "nan.h5", bad))
    assert rows["received"][0]["status"] == "not_finite", rows["received"][0]


def main():
    rng = np.random.default_rng(7)
    gradients = {}
    for name, shape in SHAPES.items():
        n = math.prod(shape)
        common = rng.standard_normal((len(ITERATIONS), 1, n)) * np.exp(rng.standard_normal(n))
        gradients[name] = (1e-3 * (common + rng.standard_normal((len(ITERATIONS), RANKS, n)))).astype("f4")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        capture = write(folder / "capture.h5", gradients)
        check_round_trip(folder, capture)
        check_against_numpy(folder, capture, gradients)
        check_refusals(folder, capture, gradients)
        check_manual(folder, pathlib.Path(sys.argv[2]) / "docs/measuring.md")
    print("means of other programs are judged as those of codecs are")


if __name__ == "__main__":
    main()

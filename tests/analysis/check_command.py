"""Command-line behaviour of `gradtool analyze`: flags, exit statuses, messages, and what goes where."""

import csv
import io
import json
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np

GRADTOOL = sys.argv[1]


def write(path, bad=False):
    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as f:
        f.attrs.update({"format": "gradtool.gradients", "schema_version": 1, "complete": 1, "producer": "numpy",
                        "created": "2024-01-01T00:00:00Z", "model": "toy", "workers": 2, "micro_batches": 1})
        f["steps/iteration"] = np.arange(6, dtype="i8")
        for i, name in enumerate(("layer1.weight", "layer1.bias", "layer2.weight")):
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update({"name": name, "shape": np.array([200], "i8"), "kind": "other", "layout": ""})
            values = rng.standard_normal((6, 2, 200)).astype("f4")
            if bad and i == 1:
                values[3, 1, 7:9] = np.inf
            group.create_dataset("gradient", data=values, chunks=(1, 1, 200), maxshape=(None, 2, 200))


def run(*arguments, status=0, prints=False):
    done = subprocess.run([GRADTOOL, "analyze", *arguments], capture_output=True, text=True)
    assert done.returncode == status, (arguments, done.returncode, done.stderr)
    if status:
        assert prints or done.stdout == "", done.stdout
        assert done.stderr.startswith("gradtool: "), done.stderr
        if status != 2:
            assert done.stderr.count("\n") == 1, done.stderr
    return done


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    write("good.h5")
    write("bad.h5", bad=True)

    done = run("good.h5")
    text, spectrum = done.stdout, "FFTW" not in done.stderr
    transforms = ["transforms", "compaction", "spectra", "autocorrelation", "fft_errors", "spectrum_steps"] if spectrum else []
    files = [name + ".csv" for name in (
        "spectrum", "spectrum_bands", *transforms, "correlation", "eigenvalues", "steps", "step_lags", "gradiveq",
        "gradiveq_lambda", "gradiveq_loss", "gradiveq_curve", "low_rank", "subspaces", "singular_values", "variance", "certainty", "unambiguous", "noise",
        "noise_steps", "losses", "packets", "importance", "distribution", "fits", "formats", "prediction")]
    assert sorted(os.listdir("analysis")) == sorted(files), os.listdir("analysis")
    assert " ".join(text.split()).endswith("wrote to analysis: " + " ".join(files)), text
    assert len(text.splitlines()) <= 36 and max(map(len, text.splitlines())) <= 100, text

    run("good.h5", "--out", "deep/er", "--only", "variance,correlation", "--layers", "layer1", "--steps", "2:4", "-t", "2")
    assert sorted(os.listdir("deep/er")) == ["correlation.csv", "eigenvalues.csv", "variance.csv"]
    run("good.h5", "--out", "s", "--only", "spectrum", status=0 if spectrum else 77)
    assert not spectrum or sorted(os.listdir("s")) == ["prediction.csv", "spectrum.csv", "spectrum_bands.csv"]
    with open("deep/er/variance.csv", newline="") as f:
        table = rows(f.read())
    assert [r["tensor"] for r in table] == ["layer1.weight", "layer1.bias", "all"]
    assert table[0]["values"] == str(200 * 3 * 2) and (table[0]["first_step"], table[0]["last_step"]) == ("2", "4")

    fine = "ok" if spectrum else "unavailable"
    done = run("bad.h5", "--out", "b", "--csv", "-")
    table = rows(done.stdout)
    assert [r["status"] for r in table] == [fine, "skipped", fine, fine]
    assert table[1]["message"] == "2 of 2400 values are not finite" and table[1]["pass_share_1"] == ""
    assert table[3]["message"].endswith("1 of 3 tensors skipped") and table[3]["elements"] == "400"
    assert "wrote to b:" in done.stderr

    for word in ("Invites (predicted error below 0.1): ", "Leaves open: ", "Rules out, unless error feedback or averaging makes up for it (above 0.5): "):
        assert word in " ".join(text.split()) + " ", text
    with open("analysis/prediction.csv", newline="") as f:
        predicted = rows(f.read())
    codecs = [row["codec"] for row in predicted if row["codec"].startswith(("topk", "qsgd"))]
    bench = [argument for codec in codecs for argument in ("--codec", codec)]
    done = subprocess.run([GRADTOOL, "bench", "good.h5", *bench, "--granularity", "tensor", "--timing", "isolated", "-n", "1", "--csv", "bench.csv"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = run("good.h5", "--out", "m", "--measured", "bench.csv").stdout
    assert f"Of {len(codecs)} measured, prediction fails for: none" in text, text
    with open("m/prediction.csv", newline="") as f, open("bench.csv", newline="") as g:
        measured = {row["codec"]: row for row in rows(f.read())}
        for row in rows(g.read()):
            one = [m for name, m in measured.items() if name.startswith(row["codec"] + ":") and all(
                part in row["params"] for part in name.split(":")[1].split(","))]
            if row["tensor"] == "all" and row["codec"] in ("topk", "qsgd"):
                assert len(one) == 1 and one[0]["measured_nmse"] == row["nmse"], (row["codec"], row["params"])
    assert "has no row of bad.h5" in run("bad.h5", "--out", "m", "--measured", "bench.csv").stderr
    run("good.h5", "--out", "m", "--measured", "good.h5", status=3)

    record = json.loads(run("good.h5", "--out", "b", "--json", "-").stdout)
    assert len(record["file_sha256"]) == 64 and record["command"].startswith("gradtool analyze good.h5")
    assert len(record["summary"]) == 4 and len(record["variance"]) == 4 and "provenance" in record
    run("good.h5", "--out", "b", "--json", "x/record.json", "--csv", "x/summary.csv")
    with open("x/record.json") as f:
        assert json.load(f)["spectrum"][0]["tensor"] == "layer1.weight"
    assert os.path.exists("x/summary.csv")

    # The number of threads changes nothing, to the last digit.
    run("good.h5", "--out", "t1", "-t", "1")
    run("good.h5", "--out", "t3", "-t", "3")
    for name in files:
        with open("t1/" + name) as one, open("t3/" + name) as three:
            assert one.read() == three.read(), name

    assert "--layers" in run("--help").stdout and "Examples" in run("--help").stdout
    assert "did you mean '--layers'" in run("good.h5", "--layer", "x", status=2).stderr
    run(status=2)
    assert "spectrum" in run("good.h5", "--only", "spectra", status=2).stderr
    assert "matches none of the 3 tensors" in run("good.h5", "--layers", "nothing", status=2).stderr
    run("good.h5", "--layers", "(", status=2)
    for steps in ("6", "3:2", "0:6", "a:b", "-1:2", "1:2:3", "99999999999999999999"):
        assert "FIRST:LAST" in run("good.h5", "--steps=" + steps, status=2).stderr, steps
    run("good.h5", "--threads", "0", status=2)
    run("good.h5", "--samples", "1", status=2)
    for device in ("gpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA"):
        assert "write cpu, cuda or cuda:INDEX" in run("good.h5", "--device", device, status=2).stderr, device
    assert "give one of them a file" in run("good.h5", "--csv", "-", "--json", "-", status=2).stderr

    run("missing.h5", status=3)
    with open("text.h5", "w") as f:
        f.write("not HDF5 at all\n" * 100)
    assert "text.h5" in run("text.h5", status=3).stderr
    with open("good.h5", "rb") as f, open("cut.h5", "wb") as g:
        g.write(f.read()[:5000])
    run("cut.h5", status=3)
    with open("occupied", "w"):
        pass
    # Tables that cannot be written take nothing from the terminal, nor from another file.
    done = run("good.h5", "--out", "occupied", "--only", "variance", status=4, prints=True)
    assert "Variance test" in done.stdout and "wrote" not in done.stdout, done.stdout
    done = run("good.h5", "--out", "occupied", "--only", "variance", "--csv", "summary.csv", status=4, prints=True)
    assert done.stdout.endswith("\nwrote summary.csv\n"), done.stdout
    assert "layer2.weight" in open("summary.csv").read()
print("ok")

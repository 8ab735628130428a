"""Several seeds in one bench: each has the rows that it has alone. Some steps of a capture: as a capture that has no others. Parameters: by
name in the record.

Usage: check_selection.py GRADTOOL SAMPLE
"""
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import h5py

GRADTOOL, SAMPLE = sys.argv[1:3]  # the sample has the iterations 100 to 102
TIMES = ("_us_", "_gb_s", "_noise", "speedup", "headroom", "breakeven", "encode_share", "decode_share", "pareto")


def bench(folder, *flags, capture=SAMPLE):
    """The rows without what a clock says, the rows of steps, and the record."""
    subprocess.run([GRADTOOL, "bench", capture, "-n", "1", "--csv", folder / "t.csv", "--steps-csv", folder / "s.csv", "--json", folder / "r.json", *flags],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tables = []
    for name in ("t.csv", "s.csv"):
        with open(folder / name, newline="") as file:
            rows = list(csv.DictReader(file))
        tables.append([{c: v for c, v in row.items() if c != "run_id" and not any(part in c for part in TIMES)} for row in rows])
    return *tables, json.loads((folder / "r.json").read_text())


def refused(words, *flags):
    done = subprocess.run([GRADTOOL, "bench", SAMPLE, "-n", "1", "--codec", "none", *flags], capture_output=True, text=True)
    assert done.returncode == 2 and words in done.stderr, (flags, done.returncode, done.stderr)


def check_seeds(folder):
    flags = ("--codec", "qsgd,topk", "--per-tensor")
    rows, steps, record = bench(folder, "--seeds", "7,1", *flags)
    alone = [bench(folder, "--seed", seed, *flags) for seed in ("7", "1")]
    assert rows == alone[0][0] + alone[1][0] and steps == alone[0][1] + alone[1][1], "a seed has other rows alone"
    assert [row["seed"] for row in record["rows"]] == [int(row["seed"]) for row in rows], "the record has other rows"
    errors = {row["seed"]: row["nmse"] for row in rows if row["codec"] == "qsgd" and row["tensor"] == "all"}
    assert errors["7"] != errors["1"], errors
    with_means = bench(folder, "--seeds", "7,1", "--codec", "none", "--received", write_mean(folder))[0]
    assert sum(row["codec"] == "received" for row in with_means) == 1, "means draw nothing"
    same = subprocess.run([GRADTOOL, "compare", folder / "r.json", folder / "r.json", "--no-times"], capture_output=True, text=True)
    assert same.returncode == 0, same
    refused("--seeds '1,1' is not valid", "--seeds", "1,1", "--csv", "-")
    refused("--seeds '1,,2' is not valid", "--seeds", "1,,2", "--csv", "-")
    refused("--seeds '' is not valid", "--seeds", "", "--csv", "-")
    refused("give --csv, --json or --steps-csv", "--seeds", "1,2")
    refused("what one seed makes", "--seeds", "1,2", "--csv", "-", "--payloads", folder / "p")


def check_steps(folder):
    """In a copy of the sample that has the last two steps alone all is the same, but for the name of the file."""
    part = folder / "part.h5"
    with h5py.File(SAMPLE) as whole, h5py.File(part, "w") as file:
        file.attrs.update(whole.attrs)
        for name, values in whole["steps"].items():
            file[f"steps/{name}"] = values[1:]
        for number, tensor in whole["tensors"].items():
            group = file.create_group(f"tensors/{number}")
            group.attrs.update(tensor.attrs)
            for name, values in tensor.items():
                group[name] = values[1:]
    flags = ("--codec", "qsgd,topk", "--per-tensor")
    rows, steps, _ = bench(folder, "--steps", "101:5000", *flags)
    same, same_steps, _ = bench(folder, *flags, capture=part)
    for row in rows + same:
        row["file"] = ""
    assert rows == same and steps == same_steps and len(rows) > 10 and {row["iteration"] for row in steps} == {"101", "102"}
    assert {(row["first_step"], row["last_step"]) for row in rows} == {("101", "102")}, rows[0]
    means = write_mean(folder)  # of all steps
    received = bench(folder, "--codec", "bf16", "--received", means, "--steps", "100:101")[0]
    errors = {row["codec"]: row["nmse"] for row in received}
    assert errors["received"] == errors["bf16"] != "", errors
    refused("has no captured step", "--steps", "103:200")
    refused("whose iterations are 100 to 102", "--steps", "0:99")
    for text in ("5", "5:", ":5", "6:5", "a:b", "1:2:3", ""):
        refused(f"--steps '{text}' is not valid", "--steps", text)
    done = subprocess.run([GRADTOOL, "bench", "--synthetic", "1MB", "--steps", "1:2"], capture_output=True, text=True)
    assert done.returncode == 2 and "captured steps" in done.stderr, done


def check_parameters(folder):
    """In the record each parameter has a name, and the value that the text has."""
    record = bench(folder, "--codec", "topk:ratio=0.05,ef=off", "--codec", "qsgd,signsgd,fft,powersgd", "--timing", "isolated")[2]
    for row in record["rows"]:
        told = {} if row["params"] == "default" else dict(part.split("=") for part in row["params"].split(","))
        named = {name: value for name, value in row["parameters"].items() if name != "ef"}
        assert set(named) == set(told) - {"ef"} and told.get("ef", row["parameters"].get("ef")) == row["parameters"].get("ef"), row
        for name, value in named.items():
            assert value == told[name] or (not isinstance(value, str) and value == float(told[name])), (row["codec"], name, value)
    by_codec = {row["codec"]: row["parameters"] for row in record["rows"]}
    assert by_codec["topk"]["ratio"] == 0.05 and by_codec["topk"]["ef"] == "off" and by_codec["none"] == {}, by_codec
    assert isinstance(by_codec["qsgd"]["bits"], int) and isinstance(by_codec["qsgd"]["norm"], str), by_codec["qsgd"]


def write_mean(folder):
    path = folder / "mean.h5"
    path.unlink(missing_ok=True)
    subprocess.run([GRADTOOL, "bench", SAMPLE, "-n", "1", "--codec", "bf16", "--reconstruction", path], check=True, capture_output=True)
    return path


def main():
    with tempfile.TemporaryDirectory() as name:
        check_seeds(pathlib.Path(name))
        check_steps(pathlib.Path(name))
        check_parameters(pathlib.Path(name))
    print("seeds and ranges of steps are benches of their own")


if __name__ == "__main__":
    main()

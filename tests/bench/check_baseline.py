"""Tests the bytes and buckets that `none` sends in a job whose gradients are not float32, and, bit for bit against NumPy, its result; and
that advice compares codecs with it, by the way that suits the ranks.

Usage: check_baseline.py GRADTOOL BFLOAT16_CAPTURE
"""
import csv
import io
import pathlib
import re
import subprocess
import sys
import tempfile

import h5py
import numpy as np

GRADTOOL, LLAMA = sys.argv[1:]
STEPS, WORKERS = 2, 3
SIZES = [700, 53, 1200]  # no multiple of the workers


def bfloat16(x):
    """float32 rounded to bfloat16, to nearest even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint32)) << 16).view(np.float32)


def float16(x):
    return x.astype(np.float16).astype(np.float32)


ROUND = {"f32": lambda x: x, "f16": float16, "bf16": bfloat16}


def write_capture(path, dtypes, scale=1.0, **attributes):
    """Gradients [S, W, n] of each tensor, as they are stored."""
    rng = np.random.default_rng(1)
    gradients = []
    with h5py.File(path, "w") as f:
        f.attrs.update(format="gradtool.gradients", schema_version=1, complete=1, workers=WORKERS, **attributes)
        f["steps/iteration"] = np.arange(STEPS, dtype="i8")
        for i, (n, dtype) in enumerate(zip(SIZES, dtypes)):
            x = ROUND[dtype](scale * rng.standard_normal((STEPS, WORKERS, n)).astype("f4"))
            group = f.create_group(f"tensors/{i:04d}")
            group.attrs.update(name=f"t{i}", kind="other", layout="", shape=np.array([n]))
            stored = {"f32": x, "f16": x.astype(np.float16), "bf16": (x.view(np.uint32) >> 16).astype(np.uint16)}[dtype]
            group["gradient"] = stored
            if dtype == "bf16":
                group["gradient"].attrs["dtype"] = "bfloat16"
            gradients.append(x)
    return gradients


def bench(capture, *flags):
    run = subprocess.run([GRADTOOL, "bench", capture, "--csv", "-", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr
    rows = [row for row in csv.DictReader(io.StringIO(run.stdout)) if row["tensor"] == "all"]
    return rows, run.stderr


def ring_sum(x, dtype):
    """x [W, n] / W, added on a ring: segment s in the order of ranks s + 1, s + 2, ..., s, rounded at every hop."""
    workers, n = x.shape
    share = ROUND[dtype](x * np.float32(1.0 / workers))
    out = np.empty(n, np.float32)
    for s in range(workers):
        part = slice(n * s // workers, n * (s + 1) // workers)
        total = share[(s + 1) % workers, part]
        for hop in range(2, workers + 1):
            total = ROUND[dtype](total + share[(s + hop) % workers, part])
        out[part] = total
    return out


def check_result(folder, dtype, flags, stored, **attributes):
    """The whole model as one unit in `dtype`, of a capture in `stored`."""
    gradients = np.concatenate(write_capture(folder / "c.h5", [stored] * 3, **attributes), axis=2)
    n = gradients.shape[2]
    rows, _ = bench(folder / "c.h5", "--codec", "none", "--granularity", "model", "-n", 1, "--reconstruction", folder / "r.h5", *flags)
    result = folder / "r.h5"
    with h5py.File(result) as f:
        got = np.concatenate([f[f"tensors/{t:04d}/gradient"][:, 0] for t in range(3)], axis=1)
    result.unlink()
    expected = np.stack([ring_sum(gradients[step], dtype) for step in range(STEPS)])
    assert np.array_equal(got, expected), (dtype, flags, np.abs(got - expected).max())
    mean = gradients.astype(np.float64).mean(axis=1)
    nmse = ((mean - expected) ** 2).sum() / (mean ** 2).sum()
    size = 2 * n
    for row in rows:
        if row["codec"] != "none":
            continue
        assert row["baseline_dtype"] == dtype and row["dtype"] == stored, row
        assert int(row["raw_bytes"]) == int(row["payload_bytes"]) == size and float(row["payload_ratio"]) == 1, row
        assert float(row["bits_per_element"]) == 16, row
        assert abs(float(row["nmse"]) / nmse - 1) < 1e-9, (row["nmse"], nmse)
        assert abs(int(row["wire_bytes_per_rank"]) - 2 * (WORKERS - 1) / WORKERS * size) <= 8, row  # segments differ by an element


def check_mixed(folder):
    """Tensors of two types share no bucket, and a tensor's row has its own type; --baseline-dtype overrides the file's."""
    write_capture(folder / "m.h5", ["bf16", "f32", "bf16"])
    rows, _ = bench(folder / "m.h5", "--codec", "none", "-n", 1, "--timing", "isolated")
    none = next(row for row in rows if row["codec"] == "none")
    assert none["baseline_dtype"] == none["dtype"] == "mixed", none
    assert int(none["raw_bytes"]) == int(none["payload_bytes"]) == 2 * (SIZES[0] + SIZES[2]) + 4 * SIZES[1], none
    rows, _ = bench(folder / "m.h5", "--codec", "none", "-n", 1, "--timing", "isolated", "--granularity", "model")
    none = next(row for row in rows if row["codec"] == "none")
    assert none["baseline_dtype"] == "f32" and int(none["raw_bytes"]) == 4 * sum(SIZES), none
    rows, _ = bench(folder / "m.h5", "--codec", "int8", "-n", 1, "--timing", "isolated", "--baseline-dtype", "fp32")
    by_codec = {row["codec"]: row for row in rows}
    assert by_codec["none"]["baseline_dtype"] == "f32" and int(by_codec["none"]["payload_bytes"]) == 4 * sum(SIZES), by_codec
    assert float(by_codec["int8"]["payload_ratio"]) == 4 * sum(SIZES) / int(by_codec["int8"]["payload_bytes"]), by_codec


def check_collectives(folder):
    """The other collectives carry the type, too: shards are as exact as a cast, of which bfloat16 captures have no error."""
    for op in ("reduce-scatter", "all-gather", "all-to-all"):
        gradients = np.concatenate(write_capture(folder / "o.h5", ["f32"] * 3), axis=2)
        rows, _ = bench(folder / "o.h5", "--codec", "none", "--granularity", "model", "-n", 1, "--op", op, "--baseline-dtype", "bf16",
                        "--values", "own")
        n = -(-gradients.shape[2] // WORKERS) * WORKERS  # whole shards
        for row in (row for row in rows if row["codec"] == "none"):
            assert row["baseline_dtype"] == "bf16", row
            assert int(row["wire_bytes_per_rank"]) == (WORKERS - 1) * 2 * n // WORKERS, (op, row["wire_bytes_per_rank"], n)
            if op == "all-to-all":
                nmse = ((gradients - bfloat16(gradients)).astype(np.float64) ** 2).sum() / (gradients.astype(np.float64) ** 2).sum()
                assert abs(float(row["nmse"]) / nmse - 1) < 1e-6, (row["nmse"], nmse)
            assert 1e-7 < float(row["nmse"]) < 2e-5, (op, row["nmse"])
    rows, _ = bench(LLAMA, "--codec", "none", "-n", 1, "--op", "all-to-all")
    assert all(float(row["nmse"]) == 0 for row in rows if row["codec"] == "none"), "bfloat16 is sent as it is"


def answer(*flags):
    run = subprocess.run([GRADTOOL, "bench", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr
    return " ".join(run.stdout.split())


with tempfile.TemporaryDirectory() as name:
    here = pathlib.Path(name)
    check_result(here, "bf16", [], "bf16")
    check_result(here, "f16", [], "f16")
    check_result(here, "bf16", ["--baseline-dtype", "bf16"], "f32")
    check_result(here, "bf16", [], "f32", reduce_dtype="bfloat16")
    check_result(here, "f16", ["--baseline-dtype", "fp16"], "f32", reduce_dtype="bfloat16")
    check_mixed(here)
    check_collectives(here)

# A job in bfloat16 gains nothing by a cast to bfloat16: as many bytes, the same sums.
rows, said = bench(LLAMA, "--codec", "bf16,fp16", "--network", "10gbe", "--nodes", "2,32", "--advise")
modelled = {(row["codec"], row["ranks"]): row for row in rows if row["time_source"] == "modelled"}
for ranks in ("2", "32"):
    none, cast = modelled["none", ranks], modelled["bf16", ranks]
    assert none["wire_bytes_per_rank"] == cast["wire_bytes_per_rank"] and none["comm_us_median"] == cast["comm_us_median"], (none, cast)
    assert float(cast["speedup_vs_none"]) <= 1, cast
said = " ".join(said.split())
assert "take bf16" not in said and "take fp16" not in said and "Uncompressed means gradients in bf16" in said, said

# A gather suits few ranks, an all-to-all many. Both send as much at 2, the gather in one message instead of two of 10 ms, beside which
# the times of codecs are nothing.
# Under AdamW int8 by alltoall loses more signs of this model than the advice takes without a trial, unless a limit is given.
slow = ["--codec", "int8", "--network", "slow:alpha=10ms,beta=1Mbps", "--nodes", "2,32", "--advise", "--max-nmse", "0.1", "-n", "5"]
rows, said = bench(LLAMA, *slow)
ways = {(row["aggregation"], row["ranks"], row["time_source"]) for row in rows if row["codec"] == "int8" and row["timing"] == "isolated"}
assert ways == {(way, *rest) for way in ("gather", "alltoall") for rest in (("4", "measured"), ("2", "modelled"), ("32", "modelled"))}, ways
said = " ".join(said.split())
assert re.search(r"2 ranks: take int8\. ", said) and re.search(r"32 ranks: take int8 by alltoall[.;] ", said), said
by_way = {row["aggregation"]: row for row in rows if row["codec"] == "int8" and row["ranks"] == "32"}
sent = float(by_way["alltoall"]["wire_bytes_per_rank"])
assert 0.9 < sent / (2 * 31 / 32 * int(by_way["alltoall"]["elements"])) < 1.2, sent
assert float(by_way["gather"]["wire_bytes_per_rank"]) > 10 * sent, by_way
# Table and advice have the gather if it alone errs little enough.
limit = (float(by_way["gather"]["nmse"]) * float(by_way["alltoall"]["nmse"])) ** 0.5
strict = answer(LLAMA, "--codec", "int8", "--network", "slow:alpha=10ms,beta=1Mbps", "--nodes", "2", "--max-nmse", limit, "--advise", "-n", "5")
assert "take int8. " in strict and "int8 alltoall" not in strict, strict
asked, _ = bench(LLAMA, *slow, "--reduce", "gather")
assert {row["aggregation"] for row in asked if row["codec"] == "int8"} == {"gather"}, "the way that was asked for, alone"
plain, _ = bench(LLAMA, "--codec", "int8", "-n", 1)
assert {row["aggregation"] for row in plain if row["codec"] == "int8"} == {"gather"}, "no network to choose for"

# tune names the way, and its command measures the same again.
tuned = subprocess.run([GRADTOOL, "tune", LLAMA, "--codec", "int8", "--network", "slow:alpha=10ms,beta=1Mbps", "--nodes", "32", "--budget", "3"],
                       check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
command = next(line.split() for line in tuned.splitlines() if line.strip().startswith("gradtool bench"))
assert command[command.index("--reduce") + 1] == "alltoall", tuned
assert "by alltoall" in answer(*command[2:], "-n", 5), command
print("uncompressed is what the job sends, and codecs take the way that suits the ranks")

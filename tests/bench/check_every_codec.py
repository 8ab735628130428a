"""Replays a real capture through every codec over several steps: every row is ok, no figure beats theory,
and methods that feed back what they did not send converge.

Usage: check_every_codec.py GRADTOOL CAPTURE
"""
import csv
import io
import json
import math
import subprocess
import sys

gradtool, capture = sys.argv[1:]


def say(*arguments):
    return subprocess.run([gradtool, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


codecs = {codec["name"]: codec for codec in json.loads(say("list", "codecs", "--json", "-"))}
info = json.loads(say("info", capture, "--json", "-"))
ranks, elements = info["workers"], info["elements"]

for granularity in ("tensor", "model"):
    table = list(csv.DictReader(io.StringIO(
        say("bench", capture, "--codec", "all", "--granularity", granularity, "--timing", "isolated", "-n", "1", "-w", "0", "--csv", "-"))))
    rows = {row["codec"]: row for row in table if row["tensor"] == "all"}
    assert set(rows) == set(codecs), set(rows) ^ set(codecs)
    for name, row in rows.items():
        where = f"{name}, {granularity}"
        assert row["status"] == "ok", f"{where}: {row['status']}, {row['message']}"
        # Sums over steps have no error if the result is no mean of gradients.
        assert ("those against" in row["message"]) == (row["cumulative_nmse"] == ""), where
        nmse, cumulative = float(row["worst_nmse"]), float(row["cumulative_nmse"] or row["nmse"])
        assert math.isfinite(nmse) and math.isfinite(cumulative), where
        if name != "noop":
            assert float(row["payload_bytes"]) > 0 and float(row["wire_bytes_per_rank"]) > 0, where
            sent = float(row["element_ratio"]) if row["element_ratio"] else 1.0
            # A value takes at least a bit; fewer only where the elements are not sent at all.
            assert float(row["payload_ratio"]) <= 32.5 * max(sent, 1.0), f"{where}: {row['payload_ratio']}"
        feeds_back = codecs[name]["error_feedback"]
        if feeds_back and nmse > 1e-4:
            # Gradients that are held back now come later, so the sums over steps are closer than the steps.
            assert cumulative < nmse, f"{where}: cumulative {cumulative} against {nmse} per step"
        # A method of several collectives has no decode(encode(x)) of one rank: powersgd, oktopk.
        alone = codecs[name]["aggregation"] != "own"
        assert not alone or row["codec_nmse"] != "", where
        assert alone or row["codec_nmse"] == "" or float(row["codec_nmse"]) > 0, f"{where}: {row['codec_nmse']}"
        if row["residual_ratio"]:
            assert float(row["residual_ratio"]) < 60, f"{where}: residual {row['residual_ratio']} times the gradient"
    lossless = [name for name in ("none", "zstd") if name in rows]
    for name in lossless:
        # Sums of bfloat16 round at every hop.
        assert float(rows[name]["nmse"]) < (1e-12 if name != "none" or rows[name]["baseline_dtype"] == "f32" else 1e-4), name
assert rows["powersgd"]["codec_nmse"] == "", rows["powersgd"]
print(f"{len(codecs)} codecs on {ranks} ranks, {elements} elements")

"""Checks that the quick start's outputs are there and have content. Usage: check_quickstart.py FOLDER"""
import csv
import json
import pathlib
import re
import sys

folder = pathlib.Path(sys.argv[1])


def rows(name):
    with open(folder / name, newline="") as file:
        table = list(csv.DictReader(file))
    assert table, f"{name} has no rows"
    return table


info = json.loads((folder / "info.json").read_text())
for key in ("steps", "workers", "tensors", "elements", "complete"):
    assert key in info, f"info.json lacks {key}"
assert len(info["windows"]) == 3, f"info.json: windows {info['windows']}"
name = "bench.csv"
table = [r for r in rows(name) if r["tensor"] == "all"]
names = {r["codec"] for r in table}
assert {"none", "noop", "fp16", "topk", "qsgd", "fft"} <= names, f"{name}: only {names}"
for row in table:
    where = f"{name} {row['codec']} {row['timing']}"
    assert row["status"] == "ok", f"{where}: {row['status']} {row['message']}"
    assert float(row["nmse"]) >= 0 and row["encode_us_median"], where
    if row["codec"] == "qsgd" and row["aggregation"] == "gather":  # by alltoall a shard is encoded twice
        assert 7 < float(row["payload_ratio"]) < 8, f"{where}: a 4-bit code cannot reach 8"
    if row["codec"] == "oktopk":
        share = float(re.search(r"of as many as the ratio asks for: ([0-9.e+]+) %", row["message"])[1])
        assert 50 <= share <= 150, f"{where}: {row['message']}"
    if row["codec"] == "none":
        # Ranks here sum around a ring; the best known all-reduce of a small bucket sends more bytes in fewer messages.
        assert float(row["nmse"]) < 1e-10 and abs(float(row["wire_ratio"]) - 1) < (1e-3 if row["time_source"] == "measured" else 0.5), where
# The methods of the five papers came to their work: with weights, with second moments, with a cycle short enough.
at_work = {r["codec"] for r in table if r["reached"] == "true"}
assert {"fft", "gradiveq", "vgc", "iwp", "dlcp"} <= at_work, f"not at work: {names - at_work}"
advice = (folder / "bench.txt").read_text().split("\n\n")[0]
assert {row["windows"] for row in table} == {"3"}, f"{name}: not of three windows of the training"
assert all(f"{network}, 32 ranks: " in advice for network in ("1gbe", "10gbe", "100gbe")), advice
record = json.loads((folder / "bench.json").read_text())
assert record["rows"] and record["file"]["sha256"] and record["provenance"]["commit"], "bench.json"
# The trial: what is worth one was trained beside none, and the answer and the page say what it came to.
entries = [entry for entry in record["advice"] if entry["of"] == "iterations"]
assert [entry["network"] for entry in entries] == ["1gbe", "10gbe", "100gbe"], record["advice"]
answer = (folder / "advice.txt").read_text().split("\n\n")[0]
assert all(f"{network}, 32 ranks: " in answer for network in ("1gbe", "10gbe", "100gbe")), answer
trials = [line.split() for line in (folder / "candidates.txt").read_text().splitlines()]
assert trials, "candidates.txt: on the slowest network some codec shortens the reduction"
page = (folder / "report.html").read_text()
for way, *codecs in trials:
    trial = json.loads((folder / f"trial-{way}/train.json").read_text())
    assert trial["elements"] == info["elements"] and not trial["interrupted"], f"trial-{way}"
    assert [row["codec"] for row in trial["summary"]] == ["none", *(codec.split(":")[0] for codec in codecs)], trial["summary"]
    assert all(row["finished"] + row["diverged"] == 3 for row in trial["summary"]), trial["summary"]
    said = " ".join(answer.split())
    for codec in codecs:
        verdict = re.search(rf"{codec.split(':')[0]}\S* (learns|loses|is undecided) \(it", said)
        assert verdict, f"advice.txt does not say what became of {codec}: {said}"
        # No headline that its own trial refutes.
        assert verdict[1] != "loses" or f": take {codec}" not in said, said
    assert f"trial-{way}/train.json" in page, f"report.html does not know trial-{way}"
analysis = sorted(p.name for p in (folder / "analysis").glob("*.csv"))
assert {"spectrum.csv", "correlation.csv", "variance.csv"} <= set(analysis), analysis
for name in analysis:
    if name.startswith("gradiveq_") and info["steps"] < 4:
        continue  # of fewer steps there is no basis to test
    rows(f"analysis/{name}")
for chart in ("break_even", "pareto_time", "phases", "layers", "scaling", "spectrum", "variance"):
    assert f'id="{chart}.csv"' in page, f"report.html lacks the chart {chart}"
# A single trial gives the chart its plain name, several ones a number behind it; how many ways need a trial depends on the machine.
charts = re.findall(r'id="final_accuracy(?:_\d+)?\.csv"', page)
assert len(charts) == len(trials), f"report.html has {len(charts)} charts of final accuracy for {len(trials)} trials"
print(f"{folder}: {len(analysis) + 5} reports, all with content")

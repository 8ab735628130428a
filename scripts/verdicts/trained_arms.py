#!/usr/bin/env python3
"""Writes lib/advice/trained_arms.inc of reports/verdicts/replay.csv, so that the advice knows what trained arms have lost.

Usage: trained_arms.py [--check]      with --check: exits 1 unless the file is what would be written

An arm is one codec in one training, replayed early and in the middle. Of a codec without a memory the smaller error of a step counts, because the advice
takes it by a capture of any one phase. A codec with a memory needs a capture of several, whose worst judges, and its larger error counts.
"""
import csv
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE, CODECS, TARGET = ROOT / "reports/verdicts/replay.csv", ROOT / "reports/verdicts/data/codecs.csv", ROOT / "lib/advice/trained_arms.inc"


def text_of(rows, unbiased):
    """unbiased: names of codecs whose errors of several steps cancel, where they have no memory."""
    arms = {}
    for row in rows:
        if not row["nmse"] or not row["lost"]:
            continue
        key = row["campaign"], row["arm"]
        nmse, lost = float(row["nmse"]), float(row["lost"])
        judged = max if row["delays"] == "1" else min
        kind = "unbiased" if row["arm"].partition(":")[0] in unbiased and row["delays"] == "0" else "other"
        arms[key] = (judged(nmse, arms[key][0]) if key in arms else nmse, lost, float(row["lost_low"] or -100), kind)  # nobody gains more than 100 points
    lines = [f'{{"{campaign}", "{arm}", {kind}, {nmse:.3g}, {lost:.2f}, {low:.2f}}},'
             for (campaign, arm), (nmse, lost, low, kind) in sorted(arms.items(), key=lambda one: (one[1][0], one[0]))]
    return "\n".join(["// Made by scripts/verdicts/trained_arms.py of reports/verdicts/replay.csv: training, codec, kind of errors, error of a step, points lost, low end of their interval.",
                      *lines, ""])


def main():
    with open(SOURCE, newline="") as file:
        rows = list(csv.DictReader(file))
    with open(CODECS, newline="") as file:
        text = text_of(rows, {row["name"] for row in csv.DictReader(file) if row["unbiased"] == "true"})
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != text:
            sys.exit(f"{TARGET.relative_to(ROOT)} is not what scripts/verdicts/trained_arms.py makes of {SOURCE.relative_to(ROOT)}: run it")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()

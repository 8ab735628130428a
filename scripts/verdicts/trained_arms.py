#!/usr/bin/env python3
"""Writes lib/advice/trained_arms.inc of reports/verdicts/replay.csv, so that the advice knows what trained arms have lost.

Usage: trained_arms.py [--check]      with --check: exits 1 unless the file is what would be written

An arm is one codec in one training, replayed early and in the middle. Of a codec without a memory the smaller error counts, because the advice takes it by a
capture of any one phase. A codec with a memory needs a capture of several, whose worst judges, and its larger error counts.

The error is that of a step, times 1 + 18 c where the errors of two steps correlate by c > 0, as in lib/advice/confidence.hpp, and for the same codecs. The
correlation is what the error of the sum over the steps is more than it would be of independent ones, which unbiased codecs show on the same capture.
"""
import csv
import pathlib
import sys

from results import is_unbiased, lasting_errors

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE, CODECS, TARGET = ROOT / "reports/verdicts/replay.csv", ROOT / "reports/verdicts/data/codecs.csv", ROOT / "lib/advice/trained_arms.inc"


def text_of(rows, unbiased):
    """unbiased: names of codecs whose errors of several steps cancel, where they have no memory."""
    arms = {}
    rows = [row for row in rows if row["nmse"] and row["lost"]]
    for row, nmse in zip(rows, lasting_errors(rows, unbiased, "moment", lambda row: int(row["last_step"]) - int(row["first_step"]) + 1)):
        key, lost = (row["campaign"], row["arm"]), float(row["lost"])
        judged = max if row["delays"] == "1" else min
        kind = "unbiased" if is_unbiased(row, unbiased) else "other"
        arms[key] = (judged(nmse, arms[key][0]) if key in arms else nmse, lost, float(row["lost_low"] or -100), kind)  # nobody gains more than 100 points
    lines = [f'{{"{campaign}", "{arm}", {kind}, {nmse:.3g}, {lost:.2f}, {low:.2f}}},'
             for (campaign, arm), (nmse, lost, low, kind) in sorted(arms.items(), key=lambda one: (one[1][0], one[0]))]
    return "\n".join(["// Made by scripts/verdicts/trained_arms.py of reports/verdicts/replay.csv: training, codec, kind of errors, lasting error, points lost, low end of their interval.",
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

#!/usr/bin/env python3
"""Writes lib/advice/trained_arms.inc of reports/verdicts/replay.csv, so that the advice knows what trained arms have lost.

Usage: trained_arms.py [--check | --left-out]
    --check     exits 1 unless the file is what would be written
    --left-out  fits the advice's limits without each model, and counts what they take of its arms

An arm is one codec in one training, replayed early and in the middle. Of a codec without a memory the smaller error counts, because the advice takes it by a
capture of any one phase. A codec with a memory needs a capture of several, whose worst judges, and its larger error counts.

The error is that of a step, times 1 + 18 c where the errors of two steps correlate by c > 0, as in lib/advice/confidence.hpp, and for the same codecs. The
correlation is what the error of the sum over the steps is more than it would be of independent ones, which unbiased codecs show on the same capture.
"""
import csv
import pathlib
import sys

from predictor_page import MAX_NMSE, fitted_limit
from results import is_unbiased, lasting_errors

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE, TARGET = ROOT / "reports/verdicts/replay.csv", ROOT / "lib/advice/trained_arms.inc"
CODECS, CAMPAIGNS = ROOT / "reports/verdicts/data/codecs.csv", ROOT / "reports/verdicts/data/campaigns.csv"


def arms_of(rows, unbiased, **counting):
    """{(campaign, arm): (lasting error, points lost, low end of their interval, kind)}; unbiased: names of codecs whose errors of several steps cancel."""
    arms = {}
    rows = [row for row in rows if row["nmse"] and row["lost"]]
    for row, nmse in zip(rows, lasting_errors(rows, unbiased, "moment", lambda row: int(row["last_step"]) - int(row["first_step"]) + 1, **counting)):
        key, lost = (row["campaign"], row["arm"]), float(row["lost"])
        judged = max if row["delays"] == "1" else min
        kind = "unbiased" if is_unbiased(row, unbiased) else "other"
        arms[key] = (judged(nmse, arms[key][0]) if key in arms else nmse, lost, float(row["lost_low"] or -100), kind)  # nobody gains more than 100 points
    return arms


def left_out(arms, models):
    """(accepted, those of them that lost more than a point, refused, arms that lost no more)."""
    accepted, lost, refused, fine = 0, [], 0, 0
    for model in dict.fromkeys(models.values()):
        for kind in ("unbiased", "other"):
            chosen = {of: [arm for (campaign, _), arm in arms.items() if (models[campaign] == model) == of and arm[3] == kind] for of in (True, False)}
            limit = fitted_limit([(None, error, points) for error, points, *_ in chosen[False] if error <= MAX_NMSE])
            accepted += sum(error <= limit for error, *_ in chosen[True])
            lost += [points for error, points, *_ in chosen[True] if error <= limit and points > 1]
            fine += sum(points <= 1 for _, points, *_ in chosen[True])
            refused += sum(points <= 1 and error > limit for error, points, *_ in chosen[True])
    return accepted, sorted(lost), refused, fine


def text_of(arms):
    lines = [f'{{"{campaign}", "{arm}", {kind}, {nmse:.3g}, {lost:.4g}, {low:.4g}}},'
             for (campaign, arm), (nmse, lost, low, kind) in sorted(arms.items(), key=lambda one: (one[1][0], one[0]))]
    return "\n".join(["// Made by scripts/verdicts/trained_arms.py of reports/verdicts/replay.csv: training, codec, kind of errors, lasting error, points lost, low end of their interval.",
                      *lines, ""])


def main():
    if sys.argv[1:] not in ([], ["--check"], ["--left-out"]):
        print(__doc__)
        sys.exit(0 if "--help" in sys.argv[1:] or "-h" in sys.argv[1:] else 2)
    with open(SOURCE, newline="") as file:
        rows = list(csv.DictReader(file))
    with open(CODECS, newline="") as file:
        unbiased = {row["name"] for row in csv.DictReader(file) if row["unbiased"] == "true"}
    if sys.argv[1:] == ["--left-out"]:
        with open(CAMPAIGNS, newline="") as file:
            models = {row["campaign"]: row["model"] for row in csv.DictReader(file)}
        for error, counting in (("lasting errors", {}), ("errors of a step", {"pairs": 0})):
            accepted, lost, refused, fine = left_out(arms_of(rows, unbiased, **counting), models)
            points = ", ".join(f"{one:.1f}" for one in lost)
            print(f"limits on {error}: {accepted} accepted, of which {len(lost)} lost more than a point ({points}); {refused} refused of {fine} that did not")
        return
    text = text_of(arms_of(rows, unbiased))
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != text:
            sys.exit(f"{TARGET.relative_to(ROOT)} is not what scripts/verdicts/trained_arms.py makes of {SOURCE.relative_to(ROOT)}: run it")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()

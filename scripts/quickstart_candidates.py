"""The codecs that a short trial is worth: what the advice takes, and up to two that would be faster after a trial.

A line for each way to reduce, with the codecs that take it: `alltoall int8 nvfp4`. Where iterations gain nothing, because this machine computes
longer than the network takes, it is the advice for gradients alone, as beside a faster computation. Usage: quickstart_candidates.py BENCH_JSON
"""
import json
import sys

advice = json.load(open(sys.argv[1], encoding="utf-8"))["advice"]
FASTER = 2


def first_of(entries, limit):
    """The first codecs that can be trained, each once; `gradtool train` reduces in one level."""
    found = {}
    for one in entries:
        if one["levels"] == 1 and len(found) < limit:
            found.setdefault(one["codec"], one["reduce"])
    return found


candidates = {}
for of in ("iterations", "gradients"):
    judged = [entry for entry in advice if entry["of"] == of]
    candidates = first_of([entry["taken"] for entry in judged if entry["taken"]], 1)
    # Those that are reduced as what is taken come first: they share its training of none.
    faster = [one for entry in judged for one in entry["after_trial"]]
    faster.sort(key=lambda one: bool(candidates) and one["reduce"] not in candidates.values())
    candidates |= first_of([one for one in faster if one["codec"] not in candidates], FASTER)
    if candidates:
        if of == "gradients" and any(entry["of"] == "iterations" for entry in advice):
            print("Beside the computation of this machine no codec gains anything: tried is what would gain beside a faster one.", file=sys.stderr)
        break
for way in dict.fromkeys(candidates.values()):
    print(way, *(codec for codec, reduce in candidates.items() if reduce == way))

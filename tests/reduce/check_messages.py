"""Follows what reducers said in their collectives with the independent decoders of scripts/payloads.

Each module's `follow(case)` gets the run (see Case) and yields, step by step, the result that the messages stand for;
it must agree with what the ranks ended with to TOLERANCE (2e-6) of the largest value. Every codec that is a reducer of
its own must have one.
Usage: check_messages.py MESSAGE_DUMP [CODEC]
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import payloads  # noqa: E402


class Case:
    """One run: parameters (strings by name), ranks, seed, tensors (name, shape, kind, first, elements), weight, and
    steps, each with `inputs` [rank] (float32) and `messages` [rank], a list of (call, bytes)."""

    def __init__(self, folder, case):
        self.text, self.ranks, self.seed, self.ef = case["text"], case["ranks"], case["seed"], case["ef"]
        self.parameters = payloads.parameters(case["params"])
        self.tensors = case["tensors"]
        self.n = sum(tensor["elements"] for tensor in self.tensors)
        read = lambda name: np.fromfile(folder / name, dtype="<f4")  # noqa: E731
        self.weight = read(case["weight"])
        self.results = [read(step["result"]) for step in case["steps"]]
        self.steps = [{"inputs": [read(rank["input"]) for rank in step["ranks"]],
                       "messages": [[(m["call"], (folder / m["bytes"]).read_bytes()) for m in rank["messages"]]
                                    for rank in step["ranks"]]} for step in case["steps"]]


failures = []
checked = 0
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    subprocess.run([sys.argv[1], str(folder)], check=True)
    for raw in json.loads((folder / "manifest.json").read_text()):
        if sys.argv[2:] not in ([], [raw["codec"]]):
            continue
        case = Case(folder, raw)
        try:
            module = payloads.module(raw["codec"])
            followed = list(module.follow(case))
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs to this case
            failures.append(f"{case.text}: {type(error).__name__}: {error}")
            continue
        assert len(followed) == len(case.results), case.text
        for step, (got, expected) in enumerate(zip(followed, case.results)):
            largest = float(np.max(np.abs(expected), initial=0.0))
            off = float(np.max(np.abs(got.astype(np.float64) - expected), initial=0.0))
            if not off <= getattr(module, "TOLERANCE", 2e-6) * largest:
                failures.append(f"{case.text}, step {step}: off by {off:.3g} of {largest:.3g}")
            checked += 1
print(f"{checked} steps followed")
if failures:
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1)

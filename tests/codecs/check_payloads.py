"""Reads every codec's payloads with the independent decoders of scripts/payloads and compares with gradtool's own.

A decoder may be off by rounding only: its tolerance is 2e-6 of the largest decoded value, unless its module states
another TOLERANCE. Every registered codec must have a decoder. A module with a function `check` also says from its paper
what the payload of an input is: check(parameters, input, payload) asserts it.
Usage: check_payloads.py PAYLOAD_DUMP [CODEC]
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import payloads  # noqa: E402

failures = []
skipped = {}
checked = 0
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    subprocess.run([sys.argv[1], str(folder)], check=True)
    for case in json.loads((folder / "manifest.json").read_text()):
        if sys.argv[2:] not in ([], [case["codec"]]):
            continue
        payload = (folder / f"{case['stem']}.payload").read_bytes()
        expected = np.fromfile(folder / f"{case['stem']}.decoded", dtype="<f4")
        name = f"{case['text']} n={case['n']}" + (", several tensors" if "tensors" in case else "")
        try:
            module = payloads.module(case["codec"])
            parameters = payloads.parameters(case["params"])
            if "tensors" not in case:
                decoded = module.decode(parameters, case["n"], payload)
            elif hasattr(module, "decode_layout"):  # for units of several tensors
                decoded = module.decode_layout(parameters, case["tensors"], payload)
            else:
                continue
            if hasattr(module, "check") and "tensors" not in case:
                module.check(parameters, np.fromfile(folder / f"{case['stem']}.input", dtype="<f4"), payload)
        except payloads.Missing as error:
            skipped[case["codec"]] = str(error)
            continue
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs to this case
            failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        assert decoded.shape == expected.shape, f"{name}: {decoded.shape} instead of {expected.shape}"
        largest = float(np.max(np.abs(expected), initial=0.0))
        off = float(np.max(np.abs(decoded.astype(np.float64) - expected), initial=0.0))
        if not off <= getattr(module, "TOLERANCE", 2e-6) * largest:
            failures.append(f"{name}: off by {off:.3g} of {largest:.3g}")
        checked += 1
print(f"{checked} payloads read")
for codec, reason in skipped.items():
    print(f"{codec}: not read, {reason}")
if failures:
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1)

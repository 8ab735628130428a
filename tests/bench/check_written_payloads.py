"""The payloads that `bench --payloads` writes are what was reduced: decoded in NumPy and averaged over ranks they are the
result that `--reconstruction` writes, for every codec whose payloads are gathered.

Usage: check_written_payloads.py GRADTOOL CAPTURE
"""
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import payloads  # noqa: E402

gradtool, capture = sys.argv[1:]
codecs = json.loads(subprocess.run([gradtool, "list", "codecs", "--json", "-"], check=True, stdout=subprocess.PIPE).stdout)
LAYOUT_MATTERS = {codec["name"] for codec in codecs if codec.get("by_layout")}  # decoders here see one tensor a unit

checked = 0
for codec in codecs:
    name = codec["name"]
    if codec["aggregation"] != "gather" or name in LAYOUT_MATTERS:
        continue
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([gradtool, "bench", capture, "--codec", name, "--timing", "isolated", "--granularity", "tensor", "-n", "1", "--payloads",
                        str(folder / "log"), "--reconstruction", str(folder / "r.h5"), "--csv", str(folder / "t.csv")],
                       check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        sums, ranks = {}, sorted((folder / "log").glob("rank*.csv"))
        for table in ranks:
            data = table.with_suffix(".bin").read_bytes()
            rows = list(csv.DictReader(table.open()))
            assert sum(int(row["bytes"]) for row in rows) == len(data), table
            for row in rows:
                if row["call"] != "all_gather_v":
                    continue
                part = data[int(row["offset"]):int(row["offset"]) + int(row["bytes"])]
                values = payloads.module(name).decode(payloads.parameters(row["params"]), int(row["elements"]), part)
                key = (int(row["step"]), row["tensors"])
                sums[key] = sums.get(key, 0.0) + values.astype(np.float64) / len(ranks)
        with h5py.File(folder / "r.h5") as file:
            for tensor in file["tensors"].values():
                for step in range(tensor["gradient"].shape[0]):
                    result, mean = tensor["gradient"][step, 0], sums[step, tensor.attrs["name"]]
                    off = np.max(np.abs(result - mean)) / max(np.max(np.abs(mean)), 1e-30)
                    tolerance = max(1e-5, getattr(payloads.module(name), "TOLERANCE", 0.0))
                    assert off <= tolerance, f"{name}, {tensor.attrs['name']}, step {step}: off by {off:.3g}"
                    checked += 1
print(f"{checked} results are the means of their payloads")
assert checked > 0

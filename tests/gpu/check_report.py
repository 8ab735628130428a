#!/usr/bin/env python3
"""The micro-benchmark runs every method that has a CUDA version, and gpu_report.py makes tables of what it wrote.

Usage: check_report.py GRADTOOL MICROBENCH
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ELEMENTS = 20000


def stub(folder, name, says):
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def main():
    gradtool, microbench = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        out = folder / f"microbench-{ELEMENTS}.json"
        subprocess.run([microbench, "--device=cuda", f"--elements={ELEMENTS}", "--benchmark_min_time=0.0001", f"--benchmark_out={out}",
                        "--benchmark_out_format=json"], check=True, stdout=subprocess.DEVNULL)
        runs = {}
        for run in json.loads(out.read_text())["benchmarks"]:
            assert not run.get("error_occurred"), run
            codec, what = run["name"].removeprefix("cuda/").split(":")[0].split("/")[0], run["name"].removesuffix("/manual_time").split("/")[-1]
            runs.setdefault(codec, {})[what] = run
        subprocess.run([gradtool, "list", "codecs", "--json", str(folder / "codecs.json")], check=True, stdout=subprocess.DEVNULL)
        listed = json.loads((folder / "codecs.json").read_text())
        for codec in listed:
            if "cuda" not in codec["spaces"] or codec["name"] == "noop":
                continue
            both = runs.get(codec["name"], {})
            assert {"encode", "decode"} <= both.keys() or "step" in both, f"{codec['name']}: {sorted(both)}"
            if "encode" in both:
                assert 0.0 < both["encode"]["of_copy"], codec["name"]
                assert ("of_copy" in both["decode"]) == (not codec["memory_floor"]["scatters"]), codec["name"]
        assert runs["topk"]["encode"]["payload_ratio"] > 50.0
        assert runs["dgc"]["encode"]["payload_ratio"] > 250.0, "not the payload of a step with a memory"
        assert runs["iwp"]["step"]["of_copy"] > 0.0

        topk = runs["topk"]["encode"]["real_time"]
        (folder / f"torch-topk-{ELEMENTS}.json").write_text(json.dumps({"torch": "2.0", "k": 200, "microseconds": 3.0 * topk}))
        stub(folder, "nvidia-smi", "A card, 1, 2 MiB, 3 MHz, 4 MHz")
        stub(folder, "nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
        (folder / "gpu_codecs.log").write_text("[  PASSED  ] 7 tests.\n")
        subprocess.run([sys.executable, str(ROOT / "scripts/gpu_report.py"), "--out", name, "--log", name, "--seconds", "1", "--", str(ELEMENTS),
                        "7"], check=True, env={**os.environ, "PATH": f"{name}:{os.environ['PATH']}"})
        text = (folder / "README.md").read_text()
    for line in ("# A card", "* gpu_codecs: 7 passed", "3.0 times topk's encode; to reach: 4.", "### 0 MB: not measured", "powersgd:rank=4, a step"):
        assert line in text, f"'{line}' is not in\n{text}"
    cells = next(line for line in text.splitlines() if line.startswith("| topk")).split("|")
    assert cells[7].strip() == "" and cells[4].strip() != "", cells
    assert any(line.startswith("| iwp |") and line.endswith("| 0.5 |") for line in text.splitlines()), text


if __name__ == "__main__":
    main()

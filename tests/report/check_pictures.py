"""`gradtool report --format svg|png`: a picture, a CSV and a specification for each chart; without vl-convert-python a refusal.

Usage: check_pictures.py GRADTOOL SOURCE_DIR
"""
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile

import sample_records

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SAMPLE = ROOT / "datasets/lenet5-fashion-mnist.h5"


def report(*arguments, **environment):
    return subprocess.run([GRADTOOL, "report", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=os.environ | environment)


if report(ROOT).returncode == 77:
    print(f"skipped: {report(ROOT).stderr.strip()}")
    sys.exit(77)
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    sample_records.run(GRADTOOL, "bench", SAMPLE, "--codec", "bf16,topk", "-n", 6, "--network", "10gbe", "--nodes", 32, "--json",
                       folder / "bench.json")
    # A Python that lacks the package: one line, and nothing is written.
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.exit(77)'\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    done = report(folder / "bench.json", "--format", "svg", "-o", folder / "no", GRADTOOL_CHARTS_PYTHON=str(python))
    assert done.returncode == 77 and "vl-convert-python" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert not (folder / "no").exists()
    done = report(folder / "bench.json", "--format", "svg", "-o", folder / "no", GRADTOOL_CHARTS_PYTHON=str(folder / "absent"))
    assert done.returncode == 77 and "absent" in done.stderr, done.stderr
    done = report(folder / "bench.json", "--format", "pdf")
    assert done.returncode == 2 and "pdf" in done.stderr, done.stderr
    done = report(folder / "bench.json", "--format", "svg", "-o", folder / "svg")
    if done.returncode == 77:
        print(f"the refusals are right; pictures skipped: {done.stderr.strip()}")
        sys.exit(77)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name.removesuffix(".vl.json") for path in (folder / "svg").glob("*.vl.json"))
    assert {"break_even", "take_by_speed", "pareto_bytes", "pareto_time", "phases", "error_steps", "scaling"} <= set(names), names
    for one in names:
        picture = (folder / "svg" / f"{one}.svg").read_text()
        assert picture.startswith("<svg") and "var(--" not in picture and len(picture) > 3000, one
        spec = json.loads((folder / "svg" / f"{one}.vl.json").read_text())
        lines = (folder / "svg" / f"{one}.csv").read_text().strip().split("\n")
        assert len(spec["datasets"]["table"]) == len(lines) - 1, one
    done = report(folder / "bench.json", "--format", "png", "-o", folder / "png")
    assert done.returncode == 0, done.stderr
    for one in names:
        picture = (folder / "png" / f"{one}.png").read_bytes()
        assert picture.startswith(b"\x89PNG") and int.from_bytes(picture[16:20], "big") >= 1280, one
    print(f"{len(names)} charts drawn as svg and png")

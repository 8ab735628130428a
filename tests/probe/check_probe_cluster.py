"""On the shaped cluster probe knows its hosts, and bench takes its file there. (tests/soak looks at the rate that it finds.)

Usage: check_probe_cluster.py GRADTOOL SOURCE_DIR      (77: built without MPI, not root, or no network namespaces here)
"""
import csv
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SCRIPT = str(ROOT / "scripts/shaped-cluster.sh")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def run(*command):
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=240)


listed = run(GRADTOOL, "list", "comm", "--csv", "-").stdout
if not any(row["name"] == "mpi" and row["available"] == "true" for row in csv.DictReader(io.StringIO(listed))):
    skip("built without MPI")
if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc") or not shutil.which("mpirun"):
    skip("needs root, ip, tc and mpirun")
if "gtc-" in run("ip", "netns", "list").stdout:
    skip("a cluster is up already; not touched")
with tempfile.TemporaryDirectory() as scratch:
    up = run(SCRIPT, "up", "--hosts", "3", "--rate", "200mbit")
    if up.returncode != 0:
        skip(f"no namespaces or no tbf here: {up.stderr.strip()}")
    try:
        file = pathlib.Path(scratch) / "net.json"
        probe = run(SCRIPT, "run", "--", GRADTOOL, "probe", "--collective", "pair", "-b", "64", "-e", "64K", "-f", "8", "-n", "3", "--rounds", "2",
                    "-o", file)
        assert probe.returncode == 0, probe.stderr
        net = json.loads(file.read_text())
        assert net["hosts"] == net["ranks"] == 3, (net["hosts"], net["ranks"])
        # Ranks other than the first need not see the file: bench's models are that one's business.
        bench = run(SCRIPT, "run", "-n", "2", "--", GRADTOOL, "bench", "--synthetic", "256KB", "--comm", "mpi", "--codec", "fp16", "-n", "2",
                    "--network", file, "--csv", "-")
        assert bench.returncode == 0 and "net:alpha=" in bench.stdout, bench.stderr
    finally:
        run(SCRIPT, "down")

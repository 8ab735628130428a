"""On the shaped cluster probe finds the rate that was set, within 10 %, and bench takes its file on those hosts.

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
RATES = {"50mbit": 0.05, "200mbit": 0.2}  # what two busy cores can carry


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
    for name, rate in RATES.items():
        up = run(SCRIPT, "up", "--hosts", "3", "--rate", name)
        if up.returncode != 0:
            skip(f"no namespaces or no tbf here: {up.stderr.strip()}")
        try:
            file = pathlib.Path(scratch) / "net.json"
            for attempt in range(3):  # what else runs on the machine slows a probe down
                probe = run(SCRIPT, "run", "--", GRADTOOL, "probe", "--collective", "pair", "-n", "6", "--rounds", "3", "-f", "8", "-o", file)
                assert probe.returncode == 0, probe.stderr
                net = json.loads(file.read_text())
                found = net["link"]["beta_gbit_s"]
                print(f"{name}: found {found} Gbit/s, contention {net['link']['contention']}")
                if abs(found / rate - 1) < 0.1:
                    break
            assert abs(found / rate - 1) < 0.1, f"{name}: found {found} Gbit/s\n{probe.stdout}"
            assert net["hosts"] == net["ranks"] == 3, (net["hosts"], net["ranks"])
            # Ranks other than the first need not see the file: bench's models are that one's business.
            bench = run(SCRIPT, "run", "-n", "2", "--", GRADTOOL, "bench", "--synthetic", "256KB", "--comm", "mpi", "--codec", "fp16", "-n", "2",
                        "--network", file, "--csv", "-")
            assert bench.returncode == 0 and "net:alpha=" in bench.stdout, bench.stderr
        finally:
            run(SCRIPT, "down")

"""scripts/shaped-cluster.sh: ranks run on hosts of their own, and nothing is left behind, killed or not.

Usage: check_cluster.py SCRIPT      (77: not root, or no network namespaces here)
"""
import os
import shutil
import signal
import subprocess
import sys
import time

script = sys.argv[1]


def namespaces():
    text = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True).stdout
    return [line.split()[0] for line in text.splitlines() if line.startswith("gtc-")]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc") or not shutil.which("mpirun"):
    skip("needs root, ip, tc and mpirun")
if namespaces():
    skip("a cluster is up already; not touched")
for bad in (["up", "--rate", "fast"], ["up", "--hosts", "0"], ["up", "--hostss", "2"], ["run", "--"], ["with", "--rate", "1gbit"],
            ["up", "--queue", "many"], ["up", "--queue", "10"], ["up", "--classes", "on"], ["up", "--classes", "two", "--queue", "64kb"]):
    failed = subprocess.run([script, *bad], stderr=subprocess.PIPE, text=True)
    assert failed.returncode == 2 and len(failed.stderr.strip().splitlines()) == 1, (bad, failed.returncode, failed.stderr)

first = subprocess.run([script, "up", "--hosts", "3", "--rate", "200mbit"], stderr=subprocess.PIPE, text=True)
if first.returncode != 0:
    assert not namespaces(), "a failed `up` left namespaces behind"
    skip(f"no namespaces or no tbf here: {first.stderr.strip()}")
try:
    assert len(namespaces()) == 4
    again = subprocess.run([script, "up"], stderr=subprocess.PIPE, text=True)
    assert again.returncode == 1 and len(namespaces()) == 4, "a second `up` must leave the first alone"
    said = subprocess.run([script, "run", "--", "hostname"], check=True, stdout=subprocess.PIPE, text=True, timeout=200).stdout
    assert sorted(said.split()) == ["gtc-h0", "gtc-h1", "gtc-h2"], said
    said = subprocess.run([script, "run", "-n", "5", "--", "hostname"], check=True, stdout=subprocess.PIPE, text=True, timeout=200).stdout
    assert sorted(said.split()) == ["gtc-h0", "gtc-h0", "gtc-h1", "gtc-h1", "gtc-h2"], said
    assert subprocess.run([script, "run", "--", "false"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode != 0

finally:
    subprocess.run([script, "down"], check=True)
assert not namespaces(), namespaces()

# A switch that loses packets and tells two classes apart, where the kernel can; tests/soak/check_shaped_cluster.py counts what it loses.
lossy = subprocess.run([script, "up", "--hosts", "3", "--rate", "50mbit", "--loss", "20%", "--queue", "30kb", "--classes", "on"],
                       stderr=subprocess.PIPE, text=True)
assert lossy.returncode in (0, 77), lossy.stderr
if lossy.returncode == 77:
    print(f"not tried here: {lossy.stderr.strip()}")
else:
    subprocess.run([script, "down"], check=True)
assert not namespaces(), namespaces()

running = subprocess.Popen([script, "with", "--hosts", "2", "--", "sleep", "60"], stderr=subprocess.DEVNULL)
while len(namespaces()) < 3:
    assert running.poll() is None, running.returncode
    time.sleep(0.05)
running.send_signal(signal.SIGTERM)
running.wait(100)
assert not namespaces(), f"killed, it left {namespaces()}"
print("ranks on hosts of their own, nothing left")

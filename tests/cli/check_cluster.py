"""scripts/shaped-cluster.sh: ranks run on hosts of their own, the rate holds, and nothing is left behind, killed or not.

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
for bad in (["up", "--rate", "fast"], ["up", "--hosts", "0"], ["up", "--hostss", "2"], ["run", "--"], ["with", "--rate", "1gbit"]):
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
    said = subprocess.run([script, "run", "--", "hostname"], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    assert sorted(said.split()) == ["gtc-h0", "gtc-h1", "gtc-h2"], said
    said = subprocess.run([script, "run", "-n", "5", "--", "hostname"], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    assert sorted(said.split()) == ["gtc-h0", "gtc-h0", "gtc-h1", "gtc-h1", "gtc-h2"], said
    assert subprocess.run([script, "run", "--", "false"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode != 0

    # 5 MB over 200 Mbit/s are 0.2 s; without the rate a few milliseconds.
    receive = subprocess.Popen(["ip", "netns", "exec", "gtc-h1", sys.executable, "-c",
                                "import socket\ns = socket.create_server(('', 5001))\nc, _ = s.accept()\nn = 0\n"
                                "while n < 5000000:\n    n += len(c.recv(1 << 20))\nc.sendall(b'k')"])
    time.sleep(0.5)
    took = float(subprocess.run(["ip", "netns", "exec", "gtc-h0", sys.executable, "-c",
                                 "import socket, time\nc = socket.create_connection(('10.213.77.2', 5001))\nt = time.time()\n"
                                 "c.sendall(b'x' * 5000000)\nc.recv(1)\nprint(time.time() - t)"],
                                check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout)
    receive.wait(10)
    assert 0.17 < took < 5, f"5 MB over 200 Mbit/s took {took} s"
finally:
    subprocess.run([script, "down"], check=True)
assert not namespaces(), namespaces()

running = subprocess.Popen([script, "with", "--hosts", "2", "--", "sleep", "60"], stderr=subprocess.DEVNULL)
for _ in range(100):
    time.sleep(0.1)
    if len(namespaces()) == 3:
        break
time.sleep(1)
running.send_signal(signal.SIGTERM)
running.wait(30)
assert not namespaces(), f"killed, it left {namespaces()}"
print("ranks on hosts of their own, rate held, nothing left")

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

# The switch loses what it is told to, and of two classes the one that may be dropped first.
lossy = subprocess.run([script, "up", "--hosts", "3", "--rate", "50mbit", "--loss", "20%", "--queue", "30kb", "--classes", "on"],
                       stderr=subprocess.PIPE, text=True)
assert lossy.returncode in (0, 77), lossy.stderr
if lossy.returncode == 77:
    assert not namespaces(), "a failed `up` left namespaces behind"
    print(f"not tried here: {lossy.stderr.strip()}")
else:
    # 400 datagrams of 1 kB slower than the link. Then 200 from each of two hosts at once to a port that takes half of that: 200 and the
    # queue's 30 kB or, of those that are ECN-capable, 90 kB pass. A fifth of what passes is lost.
    count = ("import socket, sys, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.bind(('', 5002))\ns.settimeout(4)\nn = 0\n"
             "try:\n    while True:\n        s.recv(2000)\n        n += 1\nexcept TimeoutError:\n    print(n)")
    send = ("import socket, sys, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.setsockopt(0, 1, int(sys.argv[1]))\n"
            "time.sleep(max(0, float(sys.argv[4]) - time.time()))\n"
            "for i in range(int(sys.argv[3])):\n    s.sendto(b'x' * 1000, ('10.213.77.2', 5002))\n    time.sleep(float(sys.argv[2]))")
    try:
        for attempt in range(5):  # a busy machine sends or takes too late
            arrived = {}
            for name, service, pause, hosts in (("slow", 0, 0.001, [0]), ("droppable", 0, 0, [0, 2]), ("important", 2, 0, [0, 2])):
                receiver = subprocess.Popen(["ip", "netns", "exec", "gtc-h1", sys.executable, "-c", count], stdout=subprocess.PIPE, text=True)
                time.sleep(0.5)
                begin = time.time() + 2
                senders = [subprocess.Popen(["ip", "netns", "exec", f"gtc-h{host}", sys.executable, "-c", send, str(service), str(pause),
                                             str(400 // len(hosts)), str(begin)]) for host in hosts]
                assert [sender.wait(30) for sender in senders] == [0] * len(hosts)
                arrived[name] = int(receiver.communicate(timeout=30)[0])
            print(arrived)
            # 320 and five standard deviations of 8
            right = 270 < arrived["slow"] < 365 and arrived["droppable"] < arrived["important"]
            if right:
                break
        assert right, arrived
    finally:
        subprocess.run([script, "down"], check=True)

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

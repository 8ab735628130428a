"""Waiting for what a process does, instead of for a time in which a slow machine may not have done it."""
import os
import pathlib
import signal
import time


def until_interruptible(process):
    """Returns once the program catches Ctrl-C; fails if it ends before."""
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        if int(status.split("SigCgt:")[1].split()[0], 16) & 1 << signal.SIGINT - 1:
            return
        time.sleep(0.01)
    raise AssertionError(f"ended with {process.returncode} before it could be interrupted")


def until_worked(process, seconds):
    """Returns once the process has taken so many seconds of processor time; fails if it ends before."""
    while process.poll() is None:
        user, system = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        if (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") >= seconds:
            return
        time.sleep(0.01)
    raise AssertionError(f"ended with {process.returncode} before it had worked for {seconds} s")

"""Commands in the READMEs of methods that state an error, `gradtool bench datasets/... # nmse 0.19`, reproduce it to the last digit.

Usage: check_readme_figures.py GRADTOOL SOURCE_FOLDER
"""
import csv
import io
import pathlib
import re
import shlex
import subprocess
import sys

GRADTOOL = sys.argv[1]
SOURCE = pathlib.Path(sys.argv[2])


def nmse_of(arguments):
    run = subprocess.run([GRADTOOL, "bench", *arguments, "--timing", "isolated", "-n", "1", "--csv", "-"], cwd=SOURCE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr
    rows = [r for r in csv.DictReader(io.StringIO(run.stdout)) if r["time_source"] == "measured" and r["tensor"] == "all"]
    [row] = [r for r in rows if r["codec"] not in ("none", "noop")]
    return float(row["nmse"])


def main():
    checked = set()
    for readme in sorted(SOURCE.glob("lib/methods/*/README.md")):
        for command, stated in re.findall(r"^gradtool bench (datasets/.*) # nmse ([0-9.]+)$", readme.read_text(), flags=re.M):
            digits = len(stated.partition(".")[2])
            found = nmse_of(shlex.split(command))
            assert f"{found:.{digits}f}" == stated, f"{readme}: {command} gives {found}, not {stated}"
            checked.add(readme.parent.name)
    assert checked >= {"sdp4bit", "dion"}, checked


main()

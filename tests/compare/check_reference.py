"""Bytes and errors of every codec on the committed capture are those of reference.csv, which is part of the tree.

Usage: check_reference.py GRADTOOL CAPTURE            compares
       check_reference.py GRADTOOL CAPTURE --update   writes reference.csv anew, for a change that is meant

Bytes must be the same; errors may differ by 1e-4, because libraries round differently on other processors."""
import csv
import io
import os
import subprocess
import sys
import tempfile

GRADTOOL, CAPTURE = sys.argv[1:3]
REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference.csv")
COLUMNS = ["schema_version", "status", "codec", "params", "aggregation", "tensor", "granularity", "elements", "ranks", "seed",
           "time_source", "timing", "pipeline", "raw_bytes", "payload_bytes", "payload_bytes_max", "wire_bytes_per_rank", "nmse",
           "cosine", "max_abs_error", "cumulative_nmse", "codec_nmse", "reached"]

with tempfile.TemporaryDirectory() as folder:
    here = os.path.join(folder, "here.csv")
    subprocess.run([GRADTOOL, "bench", CAPTURE, "--codec", "all", "--timing", "isolated", "-n", "1", "--threads", "1", "--csv", here],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if "--update" in sys.argv:
        with open(here, newline="") as source, open(REFERENCE, "w", newline="") as target:
            writer = csv.DictWriter(target, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(csv.DictReader(source))
        sys.exit(0)
    # A build without a library lacks the codecs that need it, by name.
    built = {r["name"] for r in csv.DictReader(io.StringIO(
        subprocess.run([GRADTOOL, "list", "codecs", "--csv", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout))}
    with open(REFERENCE, newline="") as file:
        rows = list(csv.DictReader(file))
    left_out = sorted({r["codec"] for r in rows} - built)
    if left_out:
        print("not in this build:", ", ".join(left_out))
    reference = os.path.join(folder, "reference.csv")
    with open(reference, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(r for r in rows if r["codec"] in built)
    done = subprocess.run([GRADTOOL, "compare", reference, here, "--no-times", "--tolerance", "1e-4"], stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    new = [line for line in done.stdout.splitlines() if line.startswith("NEW")]
    assert not new, f"{new}: add them to the reference with --update"
    sys.exit(done.returncode)

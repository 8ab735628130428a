"""Documents that repeat what the program or the sources say must say it still.

Usage: check_docs.py GRADTOOL SOURCE_DIR HAS_ALL_CODECS
"""
import csv
import io
import pathlib
import re
import subprocess
import sys

gradtool, root = sys.argv[1], pathlib.Path(sys.argv[2])


def say(*arguments):
    return subprocess.run([gradtool, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


tutorial = (root / "docs/adding-a-codec.md").read_text()
excerpts = re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", tutorial, re.S)
assert len(excerpts) >= 6, "the tutorial lost its excerpts"
for path, excerpt in excerpts:
    assert excerpt.strip("\n") in (root / path).read_text(), f"docs/adding-a-codec.md: this is not in {path}:\n{excerpt}"

measuring = (root / "docs/measuring.md").read_text()
for row in csv.DictReader(io.StringIO(say("list", "columns", "--csv", "-"))):
    line = f"| `{row['column']}` | {row['meaning'].replace('|', '&#124;')} |"
    assert line in measuring, f"docs/measuring.md lacks: {line}"

if sys.argv[3] in ("1", "ON", "TRUE"):
    assert say("list", "codecs", "--markdown") == (root / "docs/codecs.md").read_text(), \
        "docs/codecs.md is old: gradtool list codecs --markdown > docs/codecs.md"

payloads = (root / "docs/payload-format.md").read_text()
for row in csv.DictReader(io.StringIO(say("list", "codecs", "--csv", "-"))):
    assert f"\n## {row['name']}\n" in payloads, f"docs/payload-format.md does not describe {row['name']}"

readme = (root / "README.md").read_text()
for script in re.findall(r"scripts/[\w.-]+", readme):
    assert (root / script).exists(), f"README names {script}, which is not there"
print("documents agree with the program")

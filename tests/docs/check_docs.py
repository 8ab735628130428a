"""Documents that repeat what the program or the sources say must say it still.

Usage: check_docs.py GRADTOOL SOURCE_DIR
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


for tutorial, least in (("docs/adding-a-codec.md", 8), ("docs/adding-a-reducer.md", 1)):
    excerpts = re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", (root / tutorial).read_text(), re.S)
    assert len(excerpts) >= least, f"{tutorial} lost its excerpts"
    for path, excerpt in excerpts:
        assert excerpt.strip("\n") in (root / path).read_text(), f"{tutorial}: this is not in {path}:\n{excerpt}"


def anchors(document):
    """Names that GitHub gives to the headings of a document."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Links between documents lead to files, and to headings, that are there.
for document in [root / "README.md", root / "CONTRIBUTING.md", root / "SECURITY.md", *sorted((root / "docs").glob("**/*.md")),
                 *sorted((root / "lib/methods").glob("*/README.md"))]:
    for link, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text()):
        target = document.parent / link if link else document
        assert target.exists(), f"{document.relative_to(root)} links to {link}, which is not there"
        if heading and target.suffix == ".md":
            assert heading in anchors(target), f"{document.relative_to(root)} links to {link}#{heading}, which is not there"

table = "| column | meaning |\n| --- | --- |\n"
for row in csv.DictReader(io.StringIO(say("list", "columns", "--csv", "-"))):
    table += f"| `{row['column']}` | {row['meaning'].replace('|', '&#124;')} |\n"
assert table + "\n" in (root / "docs/columns.md").read_text(), f"docs/columns.md must hold:\n{table}"

# The row that measuring.md reads aloud is the program's, but for its times, which are those of one machine.
measuring = (root / "docs/measuring.md").read_text()
command = re.search(r"^gradtool (bench \S+ --codec topk\S*) --timing isolated --csv row.csv$", measuring, re.M).group(1).split()
command[1] = str(root / command[1])
measured = csv.DictReader(io.StringIO(say(*command, "--timing", "isolated", "-n", "1", "--csv", "-")))
measured = next(row for row in measured if row["codec"] == "topk")
told = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \| [^|]* \|$", measuring.split("## Units")[0], re.M))
timed = {"encode_us_median", "encode_us_low", "encode_us_high", "samples", "breakeven_gbit_s"}
assert len(told) > 15 and timed < told.keys(), told
for column, value in told.items():
    assert column in measured, f"docs/measuring.md reads the column {column} aloud, which is not there"
    if column not in timed:
        same = measured[column] == value or re.fullmatch(r"[\d.]+", value) and f"{float(measured[column]):.6g}" == value
        assert same, f"docs/measuring.md says {column}={value}, the program {measured[column]}"

capture = (root / "docs/capture.md").read_text()
for row in csv.DictReader(io.StringIO(say("list", "models", "--csv", "-"))):
    line = f"| {row['name']} | {row['parameters']} | {row['input']} | {row['takes']} |"
    assert line in capture, f"docs/capture.md lacks: {line}"

def unwrapped(text):
    """Lines of a paragraph joined."""
    return re.sub(r"(?<=[^\n])\n(?!\n|- |\| |#)", " ", text)


# Each method's README begins with what `list codecs --markdown` says of it, and the index has a line for it.
index = (root / "docs/codecs.md").read_text()
pages = re.split(r"^## (.*)$", say("list", "codecs", "--markdown"), flags=re.M)[1:]
pages = {name: text.strip("\n") for name, text in zip(pages[::2], pages[1::2])}
for row in csv.DictReader(io.StringIO(say("list", "codecs", "--csv", "-"))):
    name = row["name"]
    readme = unwrapped((root / "lib/methods" / name / "README.md").read_text())
    start = unwrapped(f"# {name}\n\n{pages[name]}\n\n## Payload") + "\n"
    assert readme.startswith(start), f"lib/methods/{name}/README.md is old: it must begin with what list codecs --markdown prints"
    # A new method may land without its line in the index; a line that is there must be true.
    start = f"| [{name}](../lib/methods/{name}/README.md) |"
    line = f"{start} {row['summary']} | {row['aggregation']} |"
    assert line in index or start not in index, f"docs/codecs.md must say: {line}"
    if start not in index:
        print(f"docs/codecs.md has no line yet for {name}: {line}")

for row in csv.DictReader(io.StringIO(say("list", "presets", "--csv", "-"))):
    assert f"| {row['name']} | `{row['codec']}` |" in index, f"docs/codecs.md lacks the preset {row['name']}: {row['codec']}"
    assert row["codec"] in say("list", row["name"]), f"gradtool list {row['name']} does not say what it stands for"

readme = (root / "README.md").read_text()
for script in re.findall(r"scripts/[\w.-]+", readme):
    assert (root / script).exists(), f"README names {script}, which is not there"
print("documents agree with the program")

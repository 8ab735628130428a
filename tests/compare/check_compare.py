"""gradtool compare and bench --baseline, as a person types them. Usage: check_compare.py GRADTOOL CAPTURE OLD_RECORD"""
import csv
import json
import os
import subprocess
import sys
import tempfile

GRADTOOL, CAPTURE, OLD = sys.argv[1:]


def run(*arguments):
    done = subprocess.run([GRADTOOL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout, done.stderr


def one_sentence(arguments, status, *words):
    code, out, err = run(*arguments)
    sentences = [line for line in err.splitlines() if not line.startswith("turn ")]
    assert code == status and out == "" and len(sentences) == 1, (arguments, code, out, err)
    assert all(word in err for word in words), (arguments, err)


with tempfile.TemporaryDirectory() as folder:
    def place(name):
        return os.path.join(folder, name)

    a, b, table = place("a.json"), place("b.json"), place("a.csv")
    bench = ["bench", CAPTURE, "--codec", "topk,fp16", "--ranks", "2", "-n", "40"]
    assert run(*bench, "--json", a, "--csv", table)[0] == 0
    record = json.load(open(a))
    # Times of a quiet machine, which this one may not be.
    for row in record["rows"]:
        for phase, times in row.get("samples_us", {}).items():
            row["samples_us"][phase] = [100 + i % 5 for i in range(len(times))]
            row[f"{phase}_us_median"] = 102
    json.dump(record, open(a, "w"))

    code, out, err = run("compare", a, a)
    assert code == 0 and "bytes and errors are the same" in out and out.endswith("no regression\n"), (code, out, err)
    assert "0 FASTER, 0 SLOWER" in out and max(map(len, out.splitlines())) <= 80, out
    code, out, err = run("compare", a, table, "--no-times")
    assert code == 0 and "no times were compared" in out, "a CSV has the same bytes and errors as its record"
    code, out, err = run("compare", OLD, OLD)
    assert code == 0, "records of earlier versions are read"

    # A CSV as a spreadsheet saves it; one without a column that is promised; names that would write on the terminal.
    whole = open(table).read()
    def other(name, text):
        with open(place(name), "w", encoding="utf-8") as file:
            file.write(text)
        return place(name)
    spreadsheet = other("bom.csv", "\ufeff" + whole)
    assert run("compare", table, spreadsheet, "--no-times")[0] == 0
    assert run("report", spreadsheet, "-o", place("bom.html"))[0] in (0, 77), "77: this gradtool has no charts"
    rows = list(csv.DictReader(whole.splitlines()))
    def without(column):
        names = [name for name in rows[0] if name != column]
        return ",".join(names) + "\n" + "\n".join(",".join(f'"{row[name]}"' for name in names) for row in rows) + "\n"
    fewer = other("fewer.csv", without("cosine"))
    code, out, err = run("compare", table, fewer, "--no-times", "--json", place("fewer.json"))
    assert code == 1 and "not compared, because B lacks the column cosine" in out and out.endswith("REGRESSION\n"), (code, out)
    assert json.load(open(place("fewer.json")))["columns_only_a"] == ["cosine"]
    code, out, err = run("compare", fewer, table, "--no-times", "--markdown", "-")
    assert code == 0 and "not compared, because A lacks the column cosine" in out, (code, out)
    strange = json.loads(json.dumps(record))
    strange["rows"] = [{**row, "codec": "fp16\x1b[2J" if row["codec"] == "fp16" else row["codec"]} for row in strange["rows"]]
    json.dump(strange, open(b, "w"))
    code, out, err = run("compare", a, b)
    assert code == 1 and "\x1b" not in out and "NEW      fp16\\x1b[2J" in out, out
    for version in (3, 0, 1.5, "new", None):
        json.dump({**record, "rows": [{**row, "schema_version": version} for row in record["rows"]]}, open(b, "w"))
        one_sentence(["compare", a, b], 3, "schema version", "reads 1 to 2")

    # One byte, and twice the time for encoding.
    changed = json.loads(json.dumps(record))
    row = next(r for r in changed["rows"] if r["codec"] == "fp16" and r["timing"] == "isolated")
    row["payload_bytes"] += 1
    slow = next(r for r in changed["rows"] if r["codec"] == "topk" and r["timing"] == "isolated")
    slow["samples_us"]["encode"] = [2 * us for us in slow["samples_us"]["encode"]]
    json.dump(changed, open(b, "w"))
    code, out, err = run("compare", a, b, "--json", place("c.json"), "--markdown", place("c.md"))
    assert code == 1 and "CHANGED  fp16 isolated: payload_bytes was" in out and out.endswith("REGRESSION\n"), (code, out)
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("SLOWER")] == [["SLOWER", "topk", "encode"]], out
    said = json.load(open(place("c.json")))
    assert said["regression"] and [d["column"] for d in said["changed"]] == ["payload_bytes"], said
    verdicts = {(t["row"], t["phase"]): t for t in said["times"]}
    encode = verdicts["topk", "encode"]
    assert encode["verdict"] == "SLOWER" and abs(encode["ratio"] - 2) < 1e-9 and encode["ratio_low"] < 2 < encode["ratio_high"], encode
    assert all(t["verdict"] != "SLOWER" for t in said["times"] if t is not encode), said
    assert "| SLOWER | `topk` | encode |" in open(place("c.md")).read()
    code, out, err = run("compare", b, a, "--no-times")
    assert code == 1, "a byte less is a change as well"

    # Records of two captures say so, and by the hash also where the files have one name. Other steps of a capture are another matter.
    assert "The runs are of" not in run("compare", a, a)[1] + run("compare", a, table)[1] and said["other_capture"] is None
    moved, renamed = json.loads(json.dumps(record)), json.loads(json.dumps(record))
    moved["file"]["sha256"] = "0" * 64
    json.dump(moved, open(place("moved.json"), "w"))
    code, out, err = run("compare", a, place("moved.json"), "--no-times", "--json", place("c.json"), "--markdown", place("c.md"))
    assert code == 0 and out.startswith("The runs are of two captures: A is of ") and "SHA-256 000000000000..." in out.replace("\n  ", " "), out
    assert max(map(len, out.splitlines())) <= 80, out
    said = json.load(open(place("c.json")))["other_capture"]
    assert said.startswith("two captures: A is of ") and open(place("c.md")).read().startswith(f"The runs are of {said}.\n\n"), said
    del renamed["file"]
    for row in renamed["rows"]:
        row["file"] = "another.h5"
    json.dump(renamed, open(place("renamed.json"), "w"))
    assert "B of another.h5" in run("compare", a, place("renamed.json"))[1].replace("\n  ", " ")
    assert run(*bench, "--steps", "100:101", "--json", place("steps.json"))[0] == 0
    code, out, err = run("compare", a, place("steps.json"), "--no-times")
    assert code == 1 and out.startswith("The runs are of other steps of a capture"), out

    one_sentence(["compare", a, place("missing.json")], 3, "missing.json")
    one_sentence(["compare", a, CAPTURE], 3, CAPTURE)
    one_sentence(["compare", a, a, "--json", a], 2, "--json")
    one_sentence(["compare", a, a, "--margin", "0"], 2, "--margin")
    other = place("other.json")
    assert run("bench", CAPTURE, "--codec", "fp16", "--granularity", "tensor", "-n", "1", "--json", other)[0] == 0
    one_sentence(["compare", a, other], 2, "no row in common")
    open(place("cut.json"), "w").write(open(a).read()[:1000])
    one_sentence(["compare", a, place("cut.json")], 3, "cut off")

    # Against itself in turns: bytes must agree, times may differ on a busy machine.
    code, out, err = run(*bench, "--baseline", GRADTOOL, "--json", place("turns.json"))
    said = json.load(open(place("turns.json")))
    assert code == (1 if any(t["verdict"] == "SLOWER" for t in said["times"]) else 0) and not said["changed"], (code, out, err)
    assert said["rows"] == len(record["rows"]) and out.startswith("A: "), (said["rows"], out)
    assert [line for line in err.splitlines() if line.startswith("turn ")] == [f"turn {i} of 4: {p}" for i, p in enumerate(
        (GRADTOOL, os.path.realpath(GRADTOOL), os.path.realpath(GRADTOOL), GRADTOOL), 1)], err
    one_sentence([*bench, "--baseline", place("nothing")], 2, "--baseline", "nothing")
    one_sentence([*bench, "--baseline", "false"], 4, "false ended with status 1")
    one_sentence([*bench, "--baseline", "true"], 2, "'true' wrote no record")
    one_sentence([*bench, "--baseline", GRADTOOL, "--csv", place("x.csv")], 2, "--baseline", "--csv")
print("compare behaves")

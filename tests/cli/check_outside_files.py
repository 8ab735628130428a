"""Files that somebody else may have made: whatever a path is, a command ends with one sentence, and no file is lost.

Usage: check_outside_files.py GRADTOOL SOURCE_DIR
"""
import io
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import tempfile

import numpy as np

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SAMPLE = ROOT / "datasets/lenet5-fashion-mnist.h5"
HAS_REPORT = subprocess.run([GRADTOOL, "report", "-"], capture_output=True).returncode != 77


def run(*arguments, **keywords):
    # The limit only tells a command that ends from one that hangs.
    return subprocess.run([GRADTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL, **keywords)


def done(*arguments):
    result = run(*arguments)
    assert result.returncode == 0, f"{arguments}: {result.stderr}"
    return result.stdout + result.stderr


def refused(status, arguments, *words, **keywords):
    result = run(*arguments, **keywords)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Try ")]
    assert result.returncode == status, f"{arguments}: exit {result.returncode}, not {status}: {result.stderr}"
    assert len(lines) == 1 and "unexpected failure" not in lines[0], f"{arguments}: not one sentence: {result.stderr!r}"
    for word in words:
        assert word in lines[0], f"{arguments}: {lines[0]!r} does not say {word!r}"


def check_odd_paths(folder, record):
    """Pipes without a writer, devices, folders and files of /proc, wherever a command reads text."""
    os.mkfifo(folder / "pipe.json")
    odd = {folder / "pipe.json": "regular file", "/dev/zero": "regular file", folder: "folder", "/proc/self/mem": "cannot be read",
           folder / "absent": "cannot be opened"}
    for path, words in odd.items():
        refused(3, ["compare", path, record], str(path), words)
        refused(3, ["compare", record, path], str(path), words)
        refused(3, ["bench", SAMPLE, "--codec", "fp16", "--config", path], str(path), words)
        if path not in (folder, folder / "absent", "/dev/zero"):  # these are no files, so they are names of networks
            refused(3, ["bench", SAMPLE, "--codec", "fp16", "--network", path], str(path), words)
        if HAS_REPORT and path not in (folder, folder / "absent"):
            refused(3, ["report", path, "-o", folder / "p.html"], str(path), words)
    refused(2, ["merge", SAMPLE, "-o", ""], "--out")


def check_deep_json(folder, record):
    """Levels that no record has: what copies or prints a value calls itself for each of them."""
    whole = json.loads(record.read_text())
    for depth in (101, 10**5, 10**6):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            nested = opening * depth + ("1" if opening != "[" else "") + closing * depth
            (folder / "deep.json").write_text(json.dumps(whole)[:-1] + f', "deep": {nested}}}')
            refused(3, ["compare", folder / "deep.json", record], "deep.json", "100 levels")
            refused(3, ["bench", SAMPLE, "--codec", "fp16", "--network", folder / "deep.json"], "deep.json")
            if HAS_REPORT:
                refused(3, ["report", folder / "deep.json", "-o", folder / "p.html"], "deep.json", "100 levels")
    # Brackets within texts are no levels.
    (folder / "text.json").write_text(json.dumps(whole | {"message": '[\\"{' * 1000}))
    done("compare", folder / "text.json", record)


def check_members_of_other_kinds(folder, record):
    whole = json.loads(record.read_text())
    for change in ({"rows": 3}, {"rows": [3]}, {"rows": [{"codec": []}]}, {"file": 7}, {"provenance": []}, {"command": {"a": 1}},
                   {"schema_version": "one"}):
        (folder / "odd.json").write_text(json.dumps(whole | change))
        for command in (["compare", folder / "odd.json", record], ["report", folder / "odd.json", "-o", folder / "p.html"]):
            result = run(*command)
            assert result.returncode in (0, 1, 2, 3, 77) and "unexpected failure" not in result.stderr, (change, command, result.stderr)
    training = {"format": "gradtool.train", "schema_version": 1, "rows": [], "summary": [], "steps_per_epoch": "many", "settings": {}}
    (folder / "train.json").write_text(json.dumps(training))
    if HAS_REPORT:
        refused(3, ["report", folder / "train.json", "-o", folder / "p.html"], "train.json", "no record")


def check_trials(folder):
    """--trained: the record of a trial, as gradtool.trial writes it, and everything else."""
    arm = {"codec": "fp16:scale_log2=0", "verdict": "loses", "reason": "far behind none", "worse_by": 0.5, "low": None, "high": None, "same_as_none": 0.2,
           "lr_factor": 1.0}
    trial = {"format": "gradtool.trial", "schema_version": 1, "model": "LeNet", "elements": 61706, "arms": [arm],
             "settings": {"judge": "loss", "scheme": "auto", "workers": 4, "steps": 300}}
    file = folder / "trial.json"
    base = ["bench", SAMPLE, "--codec", "fp16", "-n", "1", "--network", "wan", "--nodes", "8"]
    command = [*base, "--advise", "--trained", file]
    refused(3, command, "trial.json")
    file.write_text(json.dumps(trial))
    said = " ".join(done(*command).split())
    assert "lost in the trial: fp16 (its loss is worse by 0.5, far behind none)." in said and "stay uncompressed" in said, said
    # The warning that none itself learned nothing is repeated, and no warning is none.
    file.write_text(json.dumps(trial | {"warning": "none itself has learned nothing"}))
    assert "trial.json: none itself has learned nothing." in " ".join(done(*command).split())
    file.write_text(json.dumps(trial | {"warning": None}))
    assert " ".join(done(*command).split()).count("trial.json: ") == 0
    refused(2, [*base, "--trained", file], "--trained", "--advise")
    file.write_text(json.dumps(trial | {"elements": 7}))
    refused(2, command, "trial.json is a trial of a model of 7 parameters", "61706")
    broken = [{"format": "gradtool.bench"}, {"schema_version": 2}, {"arms": 3}, {"arms": [3]}, {"arms": [{**arm, "low": "x"}]}, {"arms": [{**arm, "verdict": "wins"}]}, {"settings": None},
              {"elements": -1}, {"elements": "many"}, {"model": None}, {"warning": 7}, {"arms": [{"codec": "fp16"}]},
              *({"settings": trial["settings"] | wrong} for wrong in ({"workers": 0.5}, {"workers": 0}, {"steps": -1}, {"steps": 3e9}, {"steps": "3"})),
              {"arms": [{**arm, "same_as_none": 1.5}]}, {"arms": [{**arm, "low": 0.5, "high": 0.25}]}, {"arms": [{**arm, "low": 0.6, "high": 0.7}]},
              {"arms": [{**arm, "low": 0.4}]}, {"arms": [{**arm, "verdict": "learns"}]}, {"arms": [{**arm, "lr_factor": 0}]}, {"arms": [arm, {**arm, "verdict": "undecided"}]}, {"tolerance": -1},
              {"elements": 61706.5}]
    for change in broken:
        file.write_text(json.dumps(trial | change))
        result = run(*command)
        assert result.returncode in (2, 3) and "trial.json" in result.stderr and "unexpected" not in result.stderr, (change, result.stderr)


def check_trainings(folder):
    """--trained: the record of gradtool train, alone and beside a trial that says something else."""
    def run_of(codec, params, seed, accuracy):
        known = {"codec": codec, "params": params, "seed": seed}
        return {**known, "status": "finished"}, {**known, "train_loss": 0.5, "test_accuracy": accuracy}
    runs = [run_of(*codec, seed, accuracy - seed / 1000) for seed in (1, 2, 3)
            for codec, accuracy in ((("none", "default"), 0.9), (("fp16", "scale_log2=0"), 0.7), (("topk", "x=1"), 0.9))]
    record = {"format": "gradtool.train", "schema_version": 1, "elements": 61706, "runs": [one for one, _ in runs], "rows": [row for _, row in runs],
              "settings": {"--model": "lenet5", "--dataset": "fashion-mnist", "--reduce": "auto", "--workers": "4", "the number of steps": "300"}}
    out = folder / "run"
    out.mkdir()
    base = ["bench", SAMPLE, "--codec", "fp16", "-n", "1", "--network", "slow:alpha=1us,beta=1MBps", "--nodes", "8", "--advise", "--json", folder / "taught.json"]
    refused(3, [*base, "--trained", out], "train.json")
    (out / "train.json").write_text(json.dumps(record))
    for taught in (out, out / "train.json"):
        said = " ".join(done(*base, "--trained", taught).split())
        assert "stay uncompressed" in said and f"In {out}/train.json (lenet5 on fashion-mnist, 4 workers, 300 steps) it loses: its accuracy is worse by 20 points" in said, said
    # Whichever is given last: what has lost in one of them is not taken.
    arm = {"codec": "fp16:scale_log2=0", "verdict": "learns", "reason": "", "worse_by": 0.0, "low": -0.1, "high": 0.1, "same_as_none": 1.0, "lr_factor": 1.0}
    good = folder / "good.json"
    good.write_text(json.dumps({"format": "gradtool.trial", "schema_version": 1, "model": "LeNet", "elements": 61706, "arms": [arm],
                                "settings": {"judge": "loss", "scheme": "auto", "workers": 4, "steps": 300}}))
    assert "take fp16" in " ".join(done(*base, "--trained", good).split())
    for both in ([good, out], [out, good]):
        said = " ".join(done(*base, *(word for file in both for word in ("--trained", file))).split())
        assert "stay uncompressed" in said and "it loses" in said and "it learns" in said and "one in which it loses counts before" in said, said
    if HAS_REPORT:
        done("report", folder / "taught.json", "--trained", out, "-o", folder / "taught.html")
        page = (folder / "taught.html").read_text()
        assert "its accuracy is worse by 20 points" in page, "the page does not say what the training came to"
        # Prints the advice of the record, before and after the training, without measuring again.
        advice = json.loads((folder / "taught.json").read_text())["advice"]
        assert [(entry["of"], entry["answer"], entry["taken"]) for entry in advice] == [("gradients", "stay uncompressed", None)], advice
        assert "take fp16" in done("report", folder / "taught.json", "--format", "text")
        text = folder / "advice.txt"
        done("report", folder / "taught.json", "--trained", out, "--format", "text", "-o", text)
        said = " ".join(text.read_text().split())
        assert "8 ranks: stay uncompressed." in said and f"In {out}/train.json (lenet5 on fashion-mnist, 4 workers, 300 steps): fp16:scale_log2=0 loses (its" in said, said
        (folder / "info.json").write_text(done("info", SAMPLE, "--json", "-"))
        refused(2, ["report", folder / "info.json", "--format", "text"], "--format text", "bench or train")
    refused(2, [*base[:-2], "--json", good, "--trained", good], "same file", "--trained")
    for change in ({"elements": 7}, {"schema_version": 9}, {"runs": 3}, {"runs": [{}]}, {"rows": [3]}, {"settings": {}}, {"format": "gradtool.bench"}):
        (out / "train.json").write_text(json.dumps(record | change))
        refused(2 if "elements" in change else 3, [*base, "--trained", out], "train.json")


def check_config(folder):
    """Checks files that the reader of CLI11 passes over, or takes gigabytes for."""
    file = folder / "c.toml"
    for text in ("ab\n", "codec = fp16\nx\n", "[a." + "b." * 10**4 + "c]\n"):
        file.write_text(text)
        refused(2, ["bench", SAMPLE, "--config", file], "c.toml", "line")
    file.write_bytes(b"# " + b"x" * (2 << 20))
    refused(3, ["bench", SAMPLE, "--config", file], "c.toml", "more than")
    file.write_text('# a comment\n\n;\n#\n[bench]\ncodec = ["fp16",\n"bf16"\n]\niters = 2\n')
    assert "bf16" in done("bench", SAMPLE, "--config", file, "--csv", "-")
    for text, words in (("hot = 2\niters = 2\n", "hot = 2 is not valid; write true or false"), ("codec = fp16\0\n", "line 1 has a zero byte"),
                        ("[bench]\niters = 2\n[bench]\niters = 3\n", "'iters' is there twice"),
                        ("iters = 2\niters = 3\n", "iters")):
        file.write_text(text)
        refused(2, ["bench", SAMPLE, "--config", file], "c.toml", words)
    file.write_bytes(b"\xef\xbb\xbfcodec = fp16\niters = 2\nhot = yes\n")  # as Windows writes it
    assert "fp16" in done("bench", SAMPLE, "--config", file, "--csv", "-")


def check_outputs_replace_only_their_kind(folder):
    """A program, a capture or notes are no older version of a table, a record or a page."""
    table, record, page = folder / "t.csv", folder / "r.json", folder / "p.html"
    bench = ["bench", SAMPLE, "--codec", "fp16", "-n", "2"]
    for _ in range(2):  # what a command wrote it replaces
        done(*bench, "--csv", table, "--json", record, "--steps-csv", folder / "s.csv")
        if HAS_REPORT:
            done("report", record, "-o", page)
        done("analyze", SAMPLE, "--only", "variance", "-o", folder, "--csv", folder / "a.csv", "--json", folder / "a.json")
        done("list", "--csv", folder / "l.csv", "--json", folder / "l.json")
        done("info", SAMPLE, "--csv", folder / "i.csv", "--json", folder / "i.json")
        done("tune", SAMPLE, "--budget", "1", "--network", "1gbe", "--csv", folder / "u.csv", "--json", folder / "u.json")
        done("compare", record, record, "--json", folder / "c.json")
    for name, content in (("train.py", b"import os\n"), ("run.sh", b"#!/bin/sh\n"), ("x.py", b"x=1,2\n"), ("w.npz", b"PK\3\4ab"), ("n.txt", b"to do, soon\n"),
                          ("h.h5", SAMPLE.read_bytes())):
        path = folder / name
        path.write_bytes(content)
        for command in ([*bench, "--csv", path], [*bench, "--json", path], [*bench, "--steps-csv", path], ["report", record, "-o", path],
                        ["compare", record, record, "--json", path], ["analyze", SAMPLE, "-o", folder, "--csv", path], ["list", "--csv", path]):
            if command[0] == "report" and not HAS_REPORT:
                continue
            refused(2, command, name, *(() if name == "h.h5" else ("so it is kept",)))
        assert path.read_bytes() == content
    refused(2, [*bench, "--csv", record], "r.json", "is no table")
    if HAS_REPORT:
        refused(2, [*bench, "--json", page], "p.html", "is no record in JSON")
        refused(2, ["report", record, "-o", table], "t.csv", "is no page")
        refused(2, ["report", record, "-o", "-", "--format", "svg"], "--format svg writes a folder")
    for option in ("--csv", "--json"):  # before anything is measured
        assert run(*bench, option, folder / ("x" * 300)).stdout == ""
        refused(4, [*bench, option, folder / ("x" * 300)], "File name too long")
    done(*bench, "--csv", "/dev/null")
    (folder / "empty").touch()
    done(*bench, "--csv", folder / "empty")


def check_pages_replace_no_records(folder, record):
    if not HAS_REPORT:
        return
    before = record.read_bytes()
    refused(2, ["report", folder, "-o", record], "same file")
    refused(2, ["report", record, "-o", folder / "." / record.name], "same file")
    assert record.read_bytes() == before
    # The page that gets no name: a second one of the same files takes its place, one of others does not.
    work = folder / "work"
    work.mkdir()
    other = work / "other.json"
    other.write_bytes(before)
    for _ in range(2):
        result = run("report", record, cwd=work)
        assert result.returncode == 0, result.stderr
    page = (work / "report.html").read_bytes()
    refused(2, ["report", other], "report.html", "--out", cwd=work)
    assert (work / "report.html").read_bytes() == page
    assert run("report", other, "--out", "report.html", cwd=work).returncode == 0
    assert (work / "report.html").read_bytes() != page


def check_line_separators(folder):
    """U+2028 in a tensor's name is valid, and ends a line in Vega's expressions: pages have another character."""
    np.savez(folder / "n.npz", **{"a\u2028b\u2029c": np.ones((4, 4), "f4"), "plain": np.ones(8, "f4")})
    done("import", folder / "n.npz", "-o", folder / "n.h5")
    done("bench", folder / "n.h5", "--codec", "fp16", "--per-tensor", "-n", "1", "--json", folder / "n.json")
    if HAS_REPORT:
        done("report", folder / "n.json", "-o", folder / "n.html")
        page = (folder / "n.html").read_text()
        script = page[page.index('id="page.json"'):]
        assert not {"\u2028", "\u2029"} & set(script), "a line separator is in the page's data"


def check_what_is_replaced_stays_until_the_new_one_is_whole(folder):
    """--force of an import or a merge that fails leaves what was there."""
    kept = folder / "kept.h5"
    np.save(folder / "good.npy", np.arange(10, dtype="f4"))
    done("import", folder / "good.npy", "-o", kept)
    before = kept.read_bytes()
    buffer = io.BytesIO()
    np.savez(buffer, a=np.ones(100, "f4"), b=np.ones(100, "f4"))
    damaged = bytearray(buffer.getvalue())
    last = damaged.rindex(b"PK\x01\x02")  # of the last member, the checksum, which is known to be wrong when all is read
    struct.pack_into("<I", damaged, last + 16, 12345)
    (folder / "damaged.npz").write_bytes(damaged)
    refused(3, ["import", folder / "damaged.npz", "-o", kept, "--force"], "checksum")
    def alone():  # nothing is left beside it
        return not [file for file in os.listdir(folder) if file.startswith(".gradtool-")]
    assert kept.read_bytes() == before and alone()

    np.savez(folder / "large.npz", w=np.random.default_rng(0).standard_normal((512, 1024)).astype("f4"))
    done("import", folder / "large.npz", "-o", folder / "large.h5")
    for arguments in (["import", folder / "large.npz"], ["merge", "--copy", folder / "large.h5"]):
        small = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))}
        result = run(*arguments, "-o", kept, "--force", **small)
        assert result.returncode == 4, (arguments, result)
        assert kept.read_bytes() == before and alone(), arguments
        (folder / "kept.h5.new").write_bytes(b"somebody's")
        done(*arguments, "-o", kept, "--force")
        assert kept.read_bytes() != before and alone() and (folder / "kept.h5.new").read_bytes() == b"somebody's"
        kept.write_bytes(before)
    # A view that finds no room is a sentence too, and what was there stays.
    small = {"preexec_fn": lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)))}
    for target, more in ((folder / "view.h5", ()), (kept, ("--force",))):
        result = run("merge", folder / "large.h5", "-o", target, *more, **small)
        assert result.returncode == 4 and result.stderr.count("\n") == 1, result
    assert kept.read_bytes() == before and alone() and not (folder / "view.h5").exists()


def check_outputs_spare_what_is_read_elsewhere(folder):
    """A configuration, a program and the source of a prototype are inputs, although no option of the command lists them."""
    def spares(path, *arguments):
        before = path.read_bytes()
        refused(2, arguments, path.name)
        assert path.read_bytes() == before

    config = folder / "k.toml"
    config.write_text("color='never'\n")
    record = folder / "r.json"
    done("bench", SAMPLE, "--codec", "fp16", "-n", "1", "--json", record)
    for arguments in (["info", SAMPLE, "--json"], ["info", SAMPLE, "--csv"], ["list", "--json"], ["bench", SAMPLE, "--codec", "fp16", "-n", "1", "--csv"],
                      ["bench", SAMPLE, "--codec", "fp16", "-n", "1", "--steps-csv"], ["compare", record, record, "--json"], ["merge", SAMPLE, "--force", "-o"],
                      ["analyze", SAMPLE, "--only", "losses", "--out", folder / "an", "--json"]):
        spares(config, *arguments, config, "--config", config)
    table = folder / "losses.csv"
    config.rename(table)
    spares(table, "analyze", SAMPLE, "--only", "losses", "--out", folder, "--config", table)
    prototype = folder / "mine.py"
    prototype.write_text("class Nothing:\n    pass\n")
    result = run("bench", SAMPLE, "--codec", f"python:{prototype}", "-n", "1", "--csv", prototype)
    assert result.returncode != 0 and prototype.read_text().startswith("class"), result
    program = folder / "program"
    program.write_bytes(pathlib.Path(GRADTOOL).read_bytes())
    spares(program, "bench", SAMPLE, "--codec", "fp16", "-n", "1", "--baseline", program, "--json", program)


def check_one_output_that_fails_keeps_no_other(folder):
    """The table, and files on another disk, are there where one output finds no room."""
    bench = ("bench", SAMPLE, "--codec", "fp16", "-n", "1")
    for arguments, words in (((*bench, "--csv"), "fp16"), (("info", SAMPLE, "--csv"), "fc1.weight"),
                             (("analyze", SAMPLE, "--only", "losses", "--out", folder / "an", "--csv"), "losses.csv")):
        kept = folder / "kept.json"
        result = run(*arguments, "/dev/full", "--json", kept)
        assert result.returncode == 4 and "No space left" in result.stderr and words in result.stdout, result
        assert json.loads(kept.read_text())
        kept.unlink()


def check_options_without_effect(folder):
    """An option that does nothing here is refused and not ignored."""
    for more in (("--max-noise", "0.1"), ("--timeout", "1"), ("--min-samples", "5")):
        refused(2, ["bench", SAMPLE, "--codec", "fp16", "-n", "1", *more], more[0])
    for setting in ("--samples", "--taps"):
        refused(2, ["analyze", SAMPLE, "--only", "losses", "--out", folder / "no", setting, "3"], setting, "correlation")
    record = folder / "b.json"
    done("bench", SAMPLE, "--codec", "fp16", "-n", "1", "--json", record)
    for more in (("--margin", "0.1"), ("--all",)):
        refused(2, ["compare", record, record, "--no-times", *more], more[0])
    refused(2, ["train", "--model", "mlp", "--codec", "fp16", "--out", folder / "no", "--overlap", "none"], "--network")
    refused(2, ["probe", "--name", "mine"], "--out")
    if HAS_REPORT:
        done("analyze", SAMPLE, "--only", "losses", "--out", folder / "an")
        for more in (("--max-nmse", "0.1"), ("--network", "1gbe"), ("--nodes", "4")):
            refused(2, ["report", folder / "an", "-o", folder / "p.html", *more], "records of gradtool bench")


with tempfile.TemporaryDirectory() as name:
    top = pathlib.Path(name)
    bench = top / "bench.json"
    done("bench", SAMPLE, "--codec", "fp16", "-n", "1", "--json", bench)
    for check in (check_odd_paths, check_deep_json, check_members_of_other_kinds, check_pages_replace_no_records):
        place = top / check.__name__
        place.mkdir()
        own = place / "bench.json"
        own.write_bytes(bench.read_bytes())
        check(place, own)
    for check in (check_trials, check_trainings, check_config, check_outputs_replace_only_their_kind, check_line_separators, check_what_is_replaced_stays_until_the_new_one_is_whole,
                  check_outputs_spare_what_is_read_elsewhere, check_one_output_that_fails_keeps_no_other, check_options_without_effect):
        place = top / check.__name__
        place.mkdir()
        check(place)
print("every odd file was refused with a sentence, and nothing was lost")

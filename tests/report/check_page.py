"""The page of `gradtool report`, taken apart: its numbers are the cells of the files that it was made from, its sentences are those
of the terminal, it asks for nothing, and input that is not gradtool's is refused.

Usage: check_page.py GRADTOOL SOURCE_DIR
"""
import csv
import html.parser
import io
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import sample_records

GRADTOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SAMPLE = ROOT / "datasets/lenet5-fashion-mnist.h5"


class Page(html.parser.HTMLParser):
    """The JSON blocks of a page by id, and everything in it that could make a browser ask for something."""

    def __init__(self, path):
        super().__init__()
        self.blocks, self.addresses, self.policy, self._id = {}, [], "", None
        self.text = path.read_text()
        self.feed(self.text)
        self.json = json.loads(self.blocks["page.json"])
        self.charts = {chart["id"]: chart for section in self.json["sections"] for chart in section["charts"]}
        self.missing = [one for section in self.json["sections"] for one in section["missing"]]

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "script":
            self._id = attributes.get("id")
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]
        self.addresses += [attributes[name] for name in ("src", "href", "srcset", "data", "action") if name in attributes]

    def handle_endtag(self, tag):
        if tag == "script":
            self._id = None

    def handle_data(self, data):
        if self._id:
            self.blocks[self._id] = self.blocks.get(self._id, "") + data

    def table(self, chart):
        return list(csv.DictReader(io.StringIO(json.loads(self.blocks[chart + ".csv"]))))


def report(folder, *inputs):
    out = folder / "page.html"
    sample_records.run(GRADTOOL, "report", *inputs, "-o", out)
    page = Page(out)
    expect_fields(page)
    return page


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def name_of(row, names):
    """Returns the name that tables use: with the way, if a codec that gathers was replayed by another one as well."""
    return names[row["codec"], row["params"]] + (" by alltoall" if row["aggregation"] == "alltoall" else "")


US_PER_UNIT = {"us": 1, "ms": 1e3, "s": 1e6}


def unit_of(row):
    """The unit of all times of a section, which is the name of their column."""
    return next(unit for unit in US_PER_UNIT if unit in row)


def check_numbers(folder, page):
    """Every number of a chart that a file has, too, is that file's cell: letter by letter, times in the page's unit."""
    rows = rows_of(folder / "bench.csv")
    record = json.loads((folder / "bench.json").read_text())
    names = {(row["codec"], row["params"]): row["name"] for row in record["rows"] if row["tensor"] == "all"}
    isolated = {name_of(r, names): r for r in rows if r["tensor"] == "all" and r["timing"] == "isolated" and r["time_source"] == "measured"}
    modelled = {(f"{r['network']}, {r['ranks']} ranks", name_of(r, names)): r for r in rows if r["time_source"] == "modelled"}
    # Ways that another one of the codec beats wherever both were modelled are left out.
    left_out = {name for _, name in modelled} - {row["codec"] for row in page.table("phases")}
    assert "topk:ratio=0.05 by alltoall" in {name for _, name in modelled}, "a codec that gathers has both ways in the file"
    for place, name in modelled:
        if name in left_out:
            rival = name.removesuffix(" by alltoall") if "by alltoall" in name else f"{name} by alltoall"
            assert float(modelled[place, rival]["total_us_median"]) <= float(modelled[place, name]["total_us_median"]), (place, name)
    modelled = {key: row for key, row in modelled.items() if key[1] not in left_out}
    compared = 0

    def equal(shown, cell, where):
        nonlocal compared
        assert shown == cell, f"{where}: the page has {shown!r}, the file {cell!r}"
        compared += 1

    unit = unit_of(page.table("pareto_time")[0])

    def equal_time(shown, cell, where):
        if unit == "us" or shown == "" or cell == "":
            return equal(shown, cell, where)
        assert math.isclose(float(shown) * US_PER_UNIT[unit], float(cell), rel_tol=1e-12), f"{where}: {shown} {unit}, in the file {cell} us"

    places = {row["network"] for row in page.table("pareto_bytes")}
    assert places == {f"{n}, {r} ranks" for n in ("1gbe", "10gbe", "100gbe") for r in (8, 32)} | {"measured, 2 ranks"}, places
    for row in page.table("pareto_bytes"):
        source = isolated[row["codec"]] if row["network"].startswith("measured") else modelled[row["network"], row["codec"]]
        for column in ("nmse", "cumulative_nmse", "wire_bytes_per_rank", "payload_bytes", "payload_ratio"):
            equal(row[column], source[column], f"pareto_bytes {row['codec']} {column}")
        equal(row["parameters"], source["params"], "pareto_bytes parameters")
        equal(row["error"], row[row["judged_by"]], "pareto_bytes error")
    labels = {row["codec"]: row["label"] for row in page.table("pareto_bytes")}
    topk = {codec for codec in labels if codec.startswith("topk:ratio=0.05")}  # by one way or two
    assert labels["bf16"] == "bf16" and topk and all(labels[codec] == codec for codec in topk) and labels["powersgd"].startswith("powersgd:rank="), labels
    judged = {row["codec"]: row["judged_by"] for row in page.table("pareto_bytes")}
    assert judged["efsignsgd"] == "cumulative_nmse" and judged["bf16"] == "nmse", judged
    phases = page.table("phases")
    assert len(phases) == len(modelled) >= 2 * 3 * 7, (len(phases), len(modelled))
    for row in phases:
        for phase in ("encode", "comm", "decode", "total", "total_low", "total_high"):
            column, end = (f"total_{unit}_{phase[6:]}", phase[6:]) if phase.startswith("total_") else (f"{phase}_{unit}", "median")
            source = modelled[row["network"], row["codec"]][f"{phase.split('_')[0]}_us_{end}"]
            equal_time(row[column], source, f"phases {row['codec']} {column}")
    for row in page.table("pareto_time"):
        source = modelled[row["network"], row["codec"]]
        for column in ("speedup_vs_none", "pareto"):
            equal(row[column], source[column], f"pareto_time {row['codec']} {column}")
        assert math.isclose(float(row[unit]) * US_PER_UNIT[unit], float(source["total_us_median"]), rel_tol=1e-12), row
    per_tensor = {(name_of(r, names), r["tensor"]): r for r in rows if r["tensor"] != "all"}
    layers = page.table("layers")
    drawn = {row["codec"] for row in layers}
    assert len(drawn) >= 5 and not drawn & left_out and len(layers) == len(drawn) * 10, "five codecs at least, ten tensors"
    for row in layers:
        source = per_tensor[row["codec"], row["tensor"]]
        equal(row["error"], source[row["judged_by"]], f"layers {row['codec']} {row['tensor']}")
        equal(row["elements"], source["elements"], f"layers {row['codec']} {row['tensor']}")
    steps = {(name_of(r, names), r["iteration"]): r for r in rows_of(folder / "steps.csv") if r["tensor"] == "all"}
    for row in page.table("error_steps"):
        for column in ("nmse", "cumulative_nmse", "window"):
            equal(row[column], steps[row["codec"], row["iteration"]][column], f"error_steps {row['codec']} {column}")
    for chart, table in (("spectrum", "spectrum_bands"), ("eigenvalues", "eigenvalues"), ("variance", "variance"), ("noise_scale", "noise_steps"),
                         ("bases", "compaction"), ("welch", "spectra"), ("step_lags", "step_lags"), ("unambiguous", "unambiguous"),
                         ("packets", "packets"), ("formats", "formats"), ("prediction", "prediction")):
        # Rows that pool the tensors of a kind are not drawn.
        source = [row for row in rows_of(folder / "analysis" / f"{table}.csv") if row.get("tensor") != "all" or row.get("kind", "") == ""]
        if chart == "welch":
            source = [row for row in source if row["estimate"] == "welch"]
        key = [c for c in ("tensor", "band", "slice", "component", "step", "order", "basis", "kept", "frequency", "lag", "alpha", "lost", "which",
                           "format", "codec") if c in source[0] and c in page.table(chart)[0]]
        assert len({tuple(row[c] for c in key) for row in source}) == len(source), (chart, key)
        source = {tuple(row[c] for c in key): row for row in source}
        for row in page.table(chart):
            if row.get("basis", "").startswith("pca"):
                continue  # of gradiveq_curve, which a capture of three steps does not have
            for column, cell in row.items():
                if column.startswith("noise_q"):
                    continue  # what pure noise would have, which no file has: tests/analysis has it
                equal(cell, source[tuple(row[c] for c in key)][column], f"{chart} {column}")
    source = {row["tensor"]: row for row in rows_of(folder / "analysis/spectrum.csv")}
    for row in page.table("compaction"):
        column = f"{'raw' if row['kept'] == 'values' else 'fft'}_share_{int(row['kept_percent']):02}"
        equal(row["energy_share"], source[row["tensor"]][column], f"compaction {row['tensor']}")
    source = {row["tensor"]: row for row in rows_of(folder / "analysis/low_rank.csv")}
    for row in page.table("ranks"):
        equal(row["energy_share"], source[row["tensor"]][f"rank_{row['rank']}_share"], f"ranks {row['tensor']}")
    assert compared > 1000, compared
    return compared


def check_sentences(folder, page):
    """The advice of the page is what the terminal said."""
    def plain(text):
        return re.sub(r"\s+", " ", text)

    terminal = plain((folder / "bench.txt").read_text())
    verdicts = page.json["sections"][0]["verdicts"]
    assert [(v["network"], v["ranks"]) for v in verdicts] == [(n, r) for n in ("1gbe", "10gbe", "100gbe") for r in (8, 32)], verdicts
    for verdict in verdicts:
        if verdict["ranks"] != 32:
            continue  # the terminal joins neighbouring numbers of ranks with one answer, and explains the last
        assert f"32 ranks: {verdict['answer']}. " in terminal, f"{verdict['answer']} is not in {terminal}"
        assert plain(verdict["reasons"]) in terminal, f"{verdict['reasons']} is not in {terminal}"
        sent = verdict["in_pytorch"]
        assert bool(sent["call"]) == verdict["answer"].split("; in PyTorch's DDP ")[-1].startswith("take "), verdict
        assert plain(sent["remarks"]) in terminal, f"{sent} is not in {terminal}"
        if sent["call"]:
            assert f"{sent['where']}: {sent['call']} " in terminal, f"{sent} is not in {terminal}"
        for other in verdict["others"]:
            assert plain(other) in terminal, f"{other} is not in {terminal}"
    assert "61706 parameters, 0.247 MB" in terminal, terminal
    for paragraph in page.json["sections"][0]["basis"]:
        assert plain(paragraph) in terminal, paragraph


def check_iterations(folder):
    """The record says of iterations what the bench had, their intervals too, so that the same answer can be given from it."""
    def plain(text):
        return re.sub(r"\s+", " ", text)

    done = sample_records.run(GRADTOOL, "bench", SAMPLE, "--codec", "bf16,int8,qsgd", "--network", "1gbe", "--nodes", "8", "--compute-ms", "3",
                              "--advise", "--json", folder / "iterations.json")
    rows = [row for row in json.loads((folder / "iterations.json").read_text())["rows"] if row["time_source"] == "modelled" and row["codec"] != "noop"]
    assert rows and all(row["iteration_low_ms"] <= row["iteration_ms"] <= row["iteration_high_ms"] for row in rows), rows
    said = plain(sample_records.run(GRADTOOL, "report", folder / "iterations.json", "--format", "text").stdout)
    answer = plain(done.stdout[done.stdout.index("With codecs on"):]).split(" Again: ")[0].split(" Why not ")[0]
    assert answer in said, (answer, said)


def check_model(folder, page):
    """Checks that the page's own model gives the bench's figures: the same networks again, and a point of the break-even line."""
    again = report(folder, folder / "bench.json", "--network", "1gbe", "--network", "10gbe", "--network", "100gbe", "--nodes", "8,32")
    recorded = {(row["network"], row["codec"]): row for row in page.table("phases")}
    for row in again.table("phases"):
        for column in list(row)[2:]:
            was = recorded[row["network"], row["codec"]][column]
            assert (row[column] == was == "") or math.isclose(float(row[column]), float(was), rel_tol=1e-9), (row, column, was)
    lines = page.table("break_even")
    point = next(row for row in lines if 2 < float(row["link_gbit_s"]) < 4)
    network = f"lab:alpha={point['alpha_us']}us,beta={point['link_gbit_s']}Gbps"
    there = report(folder, folder / "bench.json", "--network", network, "--nodes", "32")
    unit, unit_there = unit_of(point), unit_of(there.table("pareto_time")[0])
    times = {row["codec"]: float(row[unit_there]) * US_PER_UNIT[unit_there] for row in there.table("pareto_time")}
    compared = [row for row in lines if row["link_gbit_s"] == point["link_gbit_s"] and row["codec"] in times]
    assert len({row["codec"].split(" by ")[0] for row in compared}) == 6, compared
    for row in compared:
        assert math.isclose(float(row[unit]) * US_PER_UNIT[unit], times[row["codec"]], rel_tol=1e-9), (row, times)
    # The lines cross where the strip changes from one codec to another: the codec that is taken is faster than uncompressed.
    for row in page.table("take_by_speed"):
        assert (row["codec"] in ("none", "undecided")) == (row["speedup_at_from"] == row["speedup_at_to"] == "1"), row
        assert float(row["from_gbit_s"]) < float(row["to_gbit_s"]), row


def scales_of(spec):
    """Every (domain, range) of a specification's scales that list both."""
    if isinstance(spec, list):
        return [found for one in spec for found in scales_of(one)]
    if not isinstance(spec, dict):
        return []
    own = [(spec["domain"], spec["range"])] if isinstance(spec.get("domain"), list) and isinstance(spec.get("range"), list) else []
    return own + [found for name, one in spec.items() if name != "datasets" for found in scales_of(one)]


def check_looks(folder, page):
    """A codec has one colour, dash and shape on the whole page, also where several runs are on it; phases have colours of their own."""
    # The run is recorded twice, the second time without its fastest codec, so that its codecs come in another order.
    record = json.loads((folder / "bench.json").read_text())
    first = page.json["sections"][0]["verdicts"][0]["codec"].split(":")[0]
    record["rows"] = [row | {"run_id": "second"} for row in record["rows"] if row["codec"] != first]
    (folder / "second").mkdir()
    (folder / "second/bench.json").write_text(json.dumps(record))
    both = report(folder, folder / "bench.json", folder / "second/bench.json")
    codecs = {row["codec"] for row in page.table("pareto_time")} - {"none"}
    colours, all_colours = {}, set()
    for chart in both.charts.values():
        for domain, values in scales_of(chart["spec"]):
            kind = "colour" if str(values[0]).startswith("#") else "shape" if isinstance(values[0], str) else "dash"
            for name, value in zip(domain, values):
                if name in codecs:
                    known = colours.setdefault((kind, name), value)
                    assert known == value, f"{chart['id']}: {name} is {value}, elsewhere {known}"
                    all_colours.add(json.dumps(value))
    coloured = {row["codec"] for row in page.table("pareto_time") if row["shown_as"] == row["codec"]}
    assert {name for _, name in colours} == coloured and len(coloured) >= 3, (colours, coloured)
    phases = next(values for chart in both.charts.values() if chart["id"].startswith("phases") for domain, values in scales_of(chart["spec"]) if "encode" in domain)
    assert len(set(phases)) == 3 and not all_colours & {json.dumps(one) for one in phases}, phases
    # The limit is drawn where it lies, and nothing above it is ringed.
    limited = report(folder, folder / "bench.json", "--max-nmse", "0.003")
    for name in ("pareto_time", "pareto_bytes"):
        assert '"drawn_error": 0.003' in json.dumps(limited.charts[name]["spec"]), name
    assert "datum.best === true" in json.dumps(limited.charts["pareto_time"]["spec"])
    # Ringed is what the advice may take: by a limit whatever keeps it, else what trainings vouch for, which one phase says of no codec with a memory.
    best = {limit: {row["codec"].split(":")[0]: float(row["error"]) for row in one.table("pareto_time") if row["best"] == "true"}
            for limit, one in (("0.003", limited), ("", page), ("1", report(folder, folder / "bench.json", "--max-nmse", "1")))}
    assert {"none", "bf16"} <= set(best["0.003"]) and max(best["0.003"].values()) <= 0.003, best
    assert {"none", "bf16"} <= set(best[""]) and not {"topk", "powersgd", "efsignsgd"} & set(best[""]) and max(best[""].values()) <= 0.1, best
    assert {"topk", "powersgd", "efsignsgd"} & set(best["1"]), best
    taken = {(verdict["network"], verdict["codec"]) for verdict in page.json["sections"][0]["verdicts"] if verdict["codec"]}
    ringed = {(row["network"].split(",")[0], row["codec"]) for row in page.table("pareto_time") if row["best"] == "true"}
    assert taken and all(any(network.startswith(place) and codec == row for place, row in ringed) for network, codec in taken), (taken, ringed)


def check_own_network(folder):
    """A network of one's own keeps its latency at every speed of the sweep, two share it, and the page says so."""
    one = report(folder, folder / "bench.json", "--network", "lab:alpha=7us,beta=10Gbps", "--nodes", "8")
    assert {row["alpha_us"] for row in one.table("break_even")} == {"7"}
    assert "7 us at 10 Gbit/s" in one.charts["break_even"]["lead"], one.charts["break_even"]["lead"]
    two = report(folder, folder / "bench.json", "--network", "slow:alpha=90us,beta=1Gbps", "--network", "lab:alpha=7us,beta=10Gbps", "--nodes", "8")
    latencies = [float(row["alpha_us"]) for row in two.table("break_even") if row["codec"] == "none"]
    assert math.isclose(latencies[0], 90) and math.isclose(latencies[-1], 7) and latencies == sorted(latencies, reverse=True) and len(set(latencies)) > 5, latencies


def check_form(folder, page):
    assert len(page.text.encode()) < 6_000_000
    assert "default-src 'none'" in page.policy and "connect-src" not in page.policy, page.policy
    assert page.addresses == ["data:,"], page.addresses
    assert len(page.charts) == 27, sorted(page.charts)
    record = json.loads((folder / "bench.json").read_text())
    for name, chart in page.charts.items():
        assert "@" not in json.dumps(chart["spec"]).replace("@context", ""), f"{name} has a blank that was not filled in"
        assert chart["file"] and chart["lead"] and chart["title"], name
        if chart["file"].endswith("bench.json"):
            assert chart["command"] == record["command"], name
    assert [one["title"] for one in page.missing] == ["Predicted against measured", "How long a basis serves"], page.missing
    assert "gradtool bench" in page.missing[0]["needs"]
    by_path = {pathlib.Path(file["path"]).name: file for file in page.json["files"]}
    assert {"bench.json", "analyze.json", "info.json"} <= set(by_path), by_path
    facts = {fact["label"]: fact["text"] for fact in by_path["bench.json"]["facts"]}
    assert facts["SHA-256 of the capture"] == record["file"]["sha256"] and facts["command"] == record["command"], facts
    assert len(by_path["bench.json"]["sha256"]) == 64


def check_cluster(folder):
    """Each measured time of ranks that met over a network stands beside what the model says of it."""
    path = folder / "cluster.json"
    sample_records.write_cluster(GRADTOOL, SAMPLE, path)
    page = report(folder, path)
    measured = {row["codec"]: row for row in json.loads(path.read_text())["rows"] if row["comm"] == "mpi" and row["timing"] == "concurrent"}
    table = page.table("predicted")
    assert {row["codec"].split(":")[0] for row in table} == set(measured) - {"noop"}, table
    for row in table:
        unit = next(name for name in US_PER_UNIT if f"measured_{name}" in row)
        us = float(row[f"measured_{unit}"]) * US_PER_UNIT[unit]
        assert math.isclose(us, measured[row["codec"].split(":")[0]]["total_us_median"], rel_tol=1e-4), row


def names_in(spec, key):
    """Every text, or text of a list, that a specification has under `key`, at any depth besides its data."""
    if isinstance(spec, list):
        return [name for one in spec for name in names_in(one, key)]
    if not isinstance(spec, dict):
        return []
    own = spec.get(key, [])
    own = [own] if isinstance(own, str) else [name for name in own if isinstance(name, str)] if isinstance(own, list) else []
    return own + [name for inner, one in spec.items() if inner != "datasets" for name in names_in(one, key)]


def expect_fields(page):
    """A chart draws nothing, without a word, where it asks for a column that is not there, or for one with a dot, which is a step into an object."""
    for name, chart in page.charts.items():
        spec, columns = chart["spec"], next(csv.reader(io.StringIO(json.loads(page.blocks[name + ".csv"]))))
        assert all(re.fullmatch(r"[a-z0-9_]+", column) for column in columns), f"{name}: {columns}"
        tables = [*spec.get("datasets", {}).values(), *(layer.get("data", {}).get("values", []) for layer in spec.get("layer", []))]
        datasets = {key for rows in tables for row in rows[:1] if isinstance(row, dict) for key in row}
        known = {*columns, *datasets, *names_in(spec, "as"), "value", "label"}  # the last two are a tick's
        texts = json.dumps({key: one for key, one in spec.items() if key != "datasets"})
        asked = {*names_in(spec, "field"), *names_in(spec, "groupby"), *names_in(spec, "fold"),
                 *re.findall(r"datum\.(\w+)|datum\['(\w+)'\]", texts)}
        asked = {one if isinstance(one, str) else one[0] or one[1] for one in asked}
        assert asked <= known, f"{name} asks for {asked - known}, which its table {columns} lacks"


def check_csv_alone(folder):
    page = report(folder, folder / "bench.csv", folder / "steps.csv")
    assert {"pareto_bytes", "pareto_time", "phases", "layers", "error_steps", "error_sums"} == set(page.charts), sorted(page.charts)
    assert len(page.json["sections"][0]["verdicts"]) == 6
    assert any(one["title"].startswith("Break-even") and "--json" in one["needs"] for one in page.missing), page.missing


def check_variants(folder):
    for name, path in sample_records.variants(folder).items():
        page = report(folder, path)
        if name == "empty":
            assert not page.charts and page.missing, name
        if name == "failed_row":
            assert any("qsgd" in note and "<reason>" in note for note in page.json["sections"][0]["notes"]), page.json["sections"][0]["notes"]
            assert "<reason>" not in page.text, "text of a record must not become markup"


def check_training(folder):
    """Curves are means of the record's rows over seeds, the ends are the summary's cells, and what failed is said."""
    place = folder / "train.json"
    sample_records.write_training(place)
    record = json.loads(place.read_text())
    page = report(folder, place, folder / "bench.json")
    assert [section["kind"] for section in page.json["sections"]] == ["bench", "training"]
    section = page.json["sections"][1]
    assert section["title"] == "lenet5 on fashion-mnist, 4 workers"
    names = {"none": "uncompressed", "topk": "topk:ratio=0.01", "qsgd": "qsgd:bits=4"}
    curves = page.table("accuracy_by_epoch")
    assert len(curves) == 5 + 5 + 5, curves
    for cell in curves:
        codec = next(codec for codec, name in names.items() if name == cell["codec"])
        of_epoch = [row["test_accuracy"] for row in record["rows"]
                    if row["codec"] == codec and row["epoch"] == int(cell["epoch"]) and row["test_accuracy"] is not None]
        assert int(cell["seeds"]) == len(of_epoch)
        assert math.isclose(float(cell["accuracy"]), sum(of_epoch) / len(of_epoch), rel_tol=1e-12)
        assert float(cell["accuracy_least"]) == min(of_epoch) and float(cell["accuracy_most"]) == max(of_epoch)
    losses = page.table("loss_by_epoch")
    assert {(cell["codec"], cell["epoch"]) for cell in losses} >= {(cell["codec"], cell["epoch"]) for cell in curves}
    for cell in losses:
        codec = next(codec for codec, name in names.items() if name == cell["codec"])
        of_epoch = [row["test_loss"] for row in record["rows"]
                    if row["codec"] == codec and row["step"] == 20 * int(cell["epoch"]) and row["test_loss"] is not None]
        assert math.isclose(float(cell["loss"]), sum(of_epoch) / len(of_epoch), rel_tol=1e-12)
    times = page.table("accuracy_by_time")
    assert {row["place"] for row in times} == {"1gbe, modelled", "10gbe, modelled", "here, measured"}
    for row in page.table("final_accuracy"):
        line = next(line for line in record["summary"] if names[line["codec"]] == row["codec"])
        for shown, cell in (("accuracy", "final_accuracy"), ("accuracy_low", "final_accuracy_low"), ("wire_ratio", "wire_ratio")):
            assert float(row[shown]) == line[cell]
    assert {row["codec"] for row in page.table("time_to_target")} == {"uncompressed", names["topk"]}
    said = " ".join(section["notes"])
    assert "qsgd:bits=4: diverged with seed 2" in said and "never reached an accuracy of 80 %" in said, said
    assert "qsgd: elements in factors: 12 %." in section["basis"], section["basis"]
    assert any(text.startswith("topk:ratio=0.01 ends at") and "sends 20 times less" in text for text in section["basis"]), section["basis"]
    sample_records.write_training(place, target=False)
    page = report(folder, place)
    assert "time_to_target" not in page.charts and any("--target-accuracy" in one["needs"] for one in page.missing)
    later = json.loads(place.read_text()) | {"schema_version": 2}
    (folder / "later_train.json").write_text(json.dumps(later))
    done = sample_records.run(GRADTOOL, "report", folder / "later_train.json", "-o", folder / "no.html", status=3)
    assert "schema version 2" in done.stderr, done.stderr


def check_job(folder, untraced):
    """A bench that read a trace of the job: the page says what the terminal said of it, from the record alone."""
    sample_records.write_traced(GRADTOOL, SAMPLE, folder / "traced")
    page = report(folder, folder / "traced/bench.json")
    bound, collectives = page.json["sections"][0]["job"]
    assert bound.startswith("Of a step's 420 ms (median of 2 steps in ") and bound.endswith(
        ") 140 ms are exposed communication: on that job's network no codec can gain more than 1.50 times."), bound
    assert collectives == ("The collectives of the trace: allreduce of 100 MB among 4 ranks takes 200 ms (0.75 GB/s of bus bandwidth)."), collectives
    terminal = re.sub(r"\s+", " ", (folder / "traced/bench.txt").read_text())
    assert bound in terminal and collectives in terminal, terminal
    assert untraced.json["sections"][0]["job"] == []
    record = json.loads((folder / "traced/bench.json").read_text())
    record["job_trace"]["step_ms"] = "long"
    (folder / "changed.json").write_text(json.dumps(record))
    done = sample_records.run(GRADTOOL, "report", folder / "changed.json", "-o", folder / "no.html", status=3)
    assert "changed.json: is no record as this gradtool writes it" in done.stderr, done.stderr


def check_refusals(folder):
    def refused(status, words, *inputs):
        done = sample_records.run(GRADTOOL, "report", *inputs, "-o", folder / "no.html", status=status)
        assert done.stderr.startswith("gradtool: ") and all(word in done.stderr for word in words), done.stderr
        assert not (folder / "no.html").exists()

    empty = folder / "nothing"
    empty.mkdir()
    refused(2, ["nothing to report", "bench"], empty)
    refused(2, ["not there"], folder / "absent.json")
    refused(2, ["max-nmse"], folder / "bench.json", "--max-nmse", "-1")
    refused(2, ["10gb"], folder / "bench.json", "--network", "10gb")
    (folder / "cut.json").write_text((folder / "bench.json").read_text()[:5000])
    refused(3, ["cut.json", "no valid JSON"], folder / "cut.json")
    (folder / "other.json").write_text('{"a": 1}')
    refused(3, ["other.json", "neither"], folder / "other.json")
    record = json.loads((folder / "bench.json").read_text())
    record["rows"] = [row | {"schema_version": 99} for row in record["rows"]]
    (folder / "later.json").write_text(json.dumps(record))
    refused(3, ["later.json", "schema version 99"], folder / "later.json")
    record["rows"] = [row | {"schema_version": 1, "params": "colour=blue"} for row in record["rows"]]
    (folder / "strange.json").write_text(json.dumps(record))
    refused(3, ["strange.json", "row 1", "colour=blue"], folder / "strange.json")
    (folder / "ragged.csv").write_text((folder / "bench.csv").read_text() + "1,2\n")
    refused(3, ["ragged.csv", "2 fields"], folder / "ragged.csv")
    before = (folder / "bench.json").read_bytes()
    done = sample_records.run(GRADTOOL, "report", folder / "bench.json", "-o", folder / "bench.json", status=2)
    assert "same file" in done.stderr and (folder / "bench.json").read_bytes() == before


probe = subprocess.run([GRADTOOL, "report", str(ROOT / "absent.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
if probe.returncode == 77:
    print(f"skipped: {probe.stderr.strip()}")
    sys.exit(77)
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "records").mkdir()
    records = folder / "records"
    sample_records.write_records(GRADTOOL, SAMPLE, records)
    page = report(folder, records)
    compared = check_numbers(records, page)
    check_sentences(records, page)
    check_iterations(records)
    check_model(records, page)
    check_form(records, page)
    check_own_network(records)
    check_cluster(folder)
    check_csv_alone(records)
    check_variants(records)
    check_looks(records, page)
    check_training(records)
    check_job(records, page)
    check_refusals(records)
    print(f"{len(page.charts)} charts, {compared} cells equal those of the files")

"""Records of real runs for the tests of `gradtool report`, and what may go wrong in one: many layers, one, none, failures."""
import copy
import json
import subprocess

CODECS = "bf16,topk:ratio=0.05,powersgd,qsgd:bits=4,efsignsgd"


def run(gradtool, *arguments, status=0):
    done = subprocess.run([gradtool, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=280)
    assert done.returncode == status, f"{done.args}: exit {done.returncode}, not {status}: {done.stderr}"
    return done


def write_records(gradtool, sample, folder):
    """bench.json, bench.csv, steps.csv, bench.txt (what the terminal said), info.json and analysis/ in `folder`."""
    done = run(gradtool, "bench", sample, "--codec", CODECS, "-n", 6, "--per-tensor", "--network", "1gbe", "--network", "10gbe",
               "--network", "100gbe", "--nodes", "8,32", "--advise", "--json", folder / "bench.json", "--csv", folder / "bench.csv",
               "--steps-csv", folder / "steps.csv")
    (folder / "bench.txt").write_text(done.stdout)
    run(gradtool, "info", sample, "--json", folder / "info.json")
    run(gradtool, "analyze", sample, "--out", folder / "analysis", "--json", folder / "analyze.json")


def variants(folder):
    """Paths of records that were changed: what each is about, and its file."""
    record = json.loads((folder / "bench.json").read_text())
    out = {}

    def keep(name, rows):
        changed = copy.deepcopy(record)
        changed["rows"] = rows
        place = folder / "variants" / f"{name}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(changed))
        out[name] = place

    whole = [row for row in record["rows"] if row["tensor"] == "all"]
    single = [row for row in record["rows"] if row["tensor"] != "all"]
    first = single[0]["tensor"]
    of_first = [row for row in single if row["tensor"] == first]
    keep("sixty_layers", whole + [{**row, "tensor": f"encoder.layers.{i}.attention.output.dense.weight"} for i in range(60) for row in of_first])
    keep("one_tensor", whole + of_first)
    keep("empty", [])
    keep("baselines_only", [row for row in whole if row["codec"] in ("none", "noop")])
    failed = []
    measured = ("nmse", "cumulative_nmse", "payload_bytes", "wire_bytes_per_rank")
    for row in whole:
        if row["codec"] == "qsgd" and row["time_source"] == "modelled":
            continue
        if row["codec"] == "qsgd":
            row = {key: value for key, value in row.items() if key not in ("units", "steps", "samples_us")}
            row |= {key: None for key in row if key in measured or "_us_" in key}
            row |= {"status": "failed", "message": "rank 2: a \"quoted\" <reason>, with a comma"}
        if row["codec"] == "topk":
            row = {**row, "nmse": "inf", "cumulative_nmse": "nan", "status": "not_finite"}
        failed.append(row)
    keep("failed_row", failed)
    return out

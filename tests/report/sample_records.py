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


def write_cluster(gradtool, sample, path):
    """The record of a bench whose ranks met over MPI, and of the network between them as the model has it."""
    run(gradtool, "bench", sample, "--codec", "bf16,topk:ratio=0.05,qsgd", "-n", 6, "--network", "10gbe", "--nodes", 2, "--json", path)
    record = json.loads(path.read_text())
    for row in record["rows"]:
        row["comm"] = "mpi" if row["comm"] == "threads" else row["comm"]
    path.write_text(json.dumps(record))


def write_traced(gradtool, sample, folder):
    """bench.json of a bench that was given a trace of its job, and bench.txt, in `folder`. Its two steps of 400 and 440 ms have 130 and 150 ms
    of an all-reduce with nothing beside it."""
    def event(name, category, begin, milliseconds, **arguments):
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": 1e3 * begin, "dur": 1e3 * milliseconds, "args": arguments}

    collective = {"Collective name": "allreduce", "In msg nelems": 25_000_000, "dtype": "Float", "Group size": 4}
    events = []
    for step, (begin, length, alone) in enumerate([(0, 400, 130), (400, 440, 150)]):
        end = begin + length
        events += [event(f"ProfilerStep#{step}", "user_annotation", begin, length), event("gemm", "kernel", begin, length - alone),
                   event("ncclDevKernel_AllReduce", "kernel", end - 200, 200, **collective)]
    folder.mkdir()
    trace = folder / "rank0.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    done = run(gradtool, "bench", sample, "--codec", "int8", "--timing", "isolated", "-n", 1, "--network", "10gbe", "--nodes", 8, "--advise",
               "--compute-ms", trace, "--json", folder / "bench.json")
    (folder / "bench.txt").write_text(done.stdout)
    trace.unlink()  # so that the page has to take everything from the record


def write_training(path, target=True):
    """A record as `gradtool train` writes it: two codecs and none, three seeds, five epochs, one run that diverged."""
    networks, seeds, epochs = ("1gbe", "10gbe"), (1, 2, 3), 5
    codecs = {("none", "default"): (0.90, 1.0), ("topk", "ratio=0.01,index=auto"): (0.88, 0.05), ("qsgd", "bits=4"): (0.60, 0.25)}
    rows, runs, summary = [], [], []
    for place, ((codec, params), (best, share)) in enumerate(codecs.items()):
        finals = []
        for seed in seeds:
            diverged = codec == "qsgd" and seed == 2
            runs.append({"codec": codec, "params": params, "seed": seed, "status": "diverged" if diverged else "finished",
                         "weights_sha256": "", "note": "elements in factors: 12 %" if codec == "qsgd" else ""})
            for epoch in range(1, epochs + 1 - 2 * diverged):
                over = diverged and epoch == epochs - 2
                accuracy = best * (1 - 0.5**epoch) + 0.002 * seed
                row = {"codec": codec, "params": params, "seed": seed, "epoch": epoch, "step": 20 * epoch,
                       "status": "diverged" if diverged else "finished", "learning_rate": 0.1, "train_loss": "nan" if over else 2.0 / epoch,
                       "test_loss": None if over else 2.1 / epoch, "test_accuracy": None if over else accuracy,
                       "wire_bytes": 1e6 * epoch * share, "payload_bytes": 5e5 * epoch * share}
                row |= {f"{what}_seconds": 0.1 * epoch for what in ("compute", "encode", "communicate", "decode", "total")}
                rows.append(row | {f"modelled_{n}_seconds": 0.3 * epoch * (1 + share) / (1 + i) for i, n in enumerate(networks)})
            if not diverged:
                finals.append(accuracy)
        mean = sum(finals) / len(finals)
        line = {"codec": codec, "params": params, "finished": len(finals), "diverged": 3 - len(finals),
                "diverged_seeds": "2" if len(finals) < 3 else "", "unfinished": 0}
        for what, value in (("final_accuracy", mean), ("best_accuracy", mean), ("final_accuracy_minus_none", mean - 0.876 if place else None)):
            line |= {what: value, what + "_low": None if value is None else value - 0.01, what + "_high": None if value is None else value + 0.01}
        line |= {"train_loss": 0.4, "test_loss": 0.42, "wire_bytes": 5e6 * share, "wire_ratio": 1 / share, "total_seconds": 0.5}
        line |= {f"modelled_{n}_seconds": 1.5 * (1 + share) / (1 + i) for i, n in enumerate(networks)}
        if target:
            reached = mean >= 0.8
            line |= {"target_accuracy": 0.8, "reached_target": 3 * reached, "steps_to_target": 80 if reached else None,
                     "total_seconds_to_target": 0.4 if reached else None}
            line |= {f"modelled_{n}_seconds_to_target": 1.2 * (1 + share) / (1 + i) if reached else None for i, n in enumerate(networks)}
        summary.append(line)
    path.write_text(json.dumps({
        "format": "gradtool.train", "schema_version": 1, "command": "gradtool train --model lenet5 --out run",
        "settings": {"--model": "lenet5", "--dataset": "fashion-mnist", "--workers": "4"}, "elements": 61706, "steps_per_epoch": 20,
        "interrupted": False, "runs": runs, "summary": summary, "rows": rows}))


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

"""Writes the page of reports/dlcp from the tables beside it. The tables are computed; the sentences between them were written for the tables
in the repository and are to be read again when those change."""
import csv
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(" --- " if i == 0 else " ---: " for i in range(len(header))) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def milliseconds(microseconds):
    value = float(microseconds) / 1000
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def change(ours, rival):
    return f"{100 * (float(ours) / float(rival) - 1):+.0f} %".replace("-", "−")


def completion_table(rows, experiments):
    """Mean and p99 of every transport, and DLCP's change of them."""
    lines = []
    for name, text in experiments:
        for direction in ("push", "pull", "hop"):
            chosen = {row["transport"]: row for row in rows if row["experiment"] == name and row["direction"] == direction and row["class"] == "all"}
            if not chosen:
                continue
            cells = [text, direction]
            for column in ("mean_us", "p99_us"):
                cells += [milliseconds(chosen[each][column]) for each in ("dlcp", "dctcp", "pfabric")]
                cells += [change(chosen["dlcp"][column], chosen[each][column]) for each in ("dctcp", "pfabric")]
            lines.append(cells)
    half = ["dlcp", "dctcp", "pfabric", "against dctcp", "against pfabric"]
    return table(["experiment", "message", *[f"mean {word}" for word in half], *[f"p99 {word}" for word in half]], lines)


def iteration_table(rows, experiments):
    lines = []
    for name, text in experiments:
        chosen = {row["transport"]: row for row in rows if row["experiment"] == name}
        mean = {each: float(row["iteration_us_mean"]) for each, row in chosen.items()}
        lines.append([text, milliseconds(chosen["dlcp"]["least_us"]), *[milliseconds(mean[each]) for each in ("dlcp", "dctcp", "pfabric")],
                      *[f"{100 * (mean[each] / mean['dlcp'] - 1):+.0f} %".replace("-", "−") for each in ("dctcp", "pfabric")]])
    return table(["experiment", "least", "dlcp", "dctcp", "pfabric", "DLCP faster than dctcp by", "than pfabric by"], lines)


def parts_table(completions, iterations):
    names = [("dlcp-whole", "as it is"), ("dlcp-without-marking", "no packet is dropped early"), ("dlcp-without-priorities", "no priorities of layers"),
             ("dlcp-without-spraying", "one path for each flow"), ("dlcp-without-loss", "bound 0"), ("dlcp-slow-start", "connections begin at a tenth of the rate")]
    lines = []
    for name, text in names:
        row = next(row for row in iterations if row["experiment"] == name)
        push = next(row for row in completions if row["experiment"] == name and row["direction"] == "push" and row["class"] == "all")
        front = next(row for row in completions if row["experiment"] == name and row["direction"] == "push" and row["class"] == "front")
        lines.append([text, milliseconds(row["iteration_us_mean"]), milliseconds(push["mean_us"]), milliseconds(push["p99_us"]),
                      milliseconds(front["p99_us"]), f"{float(push['delivered_important']):.3f}",
                      f"{float(push['delivered_droppable'] or 'nan'):.3f}", f"{float(push['repeated']):.2f}"])
    return table(["DLCP", "iteration", "push mean", "push p99", "front p99", "important delivered", "droppable delivered", "sent again"], lines)


def timeout_table(completions, iterations):
    lines = []
    for rto in ("10", "1", "0.5"):
        row = next(row for row in iterations if row["experiment"] == f"dctcp-rto-{rto}")
        push = next(row for row in completions if row["experiment"] == f"dctcp-rto-{rto}" and row["direction"] == "push" and row["class"] == "all")
        lines.append([f"{rto} ms", milliseconds(row["iteration_us_mean"]), milliseconds(push["mean_us"]), milliseconds(push["p99_us"])])
    return table(["DCTCP's smallest timeout", "iteration", "push mean", "push p99"], lines)


def contention_table(rows):
    loads = sorted({row["background"] for row in rows}, key=float)
    lines = []
    for codec, params in dict.fromkeys((row["codec"], row["params"]) for row in rows):
        of = {row["background"]: row for row in rows if (row["codec"], row["params"]) == (codec, params)}
        none = {row["background"]: row for row in rows if row["codec"] == "none"}
        lines.append([codec, f"{float(of[loads[0]]['wire_bytes']) / 1e6:.3g}", milliseconds(of[loads[0]]["model_us"]),
                      *[f"{milliseconds(of[load]['step_us_mean'])} ({float(of[load]['ratio']):.2f})" for load in loads],
                      f"{float(none[loads[0]]['model_us']) / float(of[loads[0]]['model_us']):.1f}",
                      *[f"{float(none[load]['step_us_mean']) / float(of[load]['step_us_mean']):.1f}" for load in loads]])
    return table(["codec", "MB a rank", "model", *[f"load {load}" for load in loads], "gain by the model", *[f"gain at {load}" for load in loads]], lines)


def queue_table(rows):
    return table(["load", "wait", "theory", "ratio"],
                 [[row["load"], f"{1e3 * float(row['wait_us_mean']):.2f} ± {1e3 * float(row['wait_us_half_width']):.2f} ns",
                   f"{1e3 * float(row['theory_us']):.2f} ns", f"{float(row['ratio']):.3f}"] for row in rows])


def write(out):
    completions, iterations = read(out / "completions.csv"), read(out / "iterations.csv")
    servers = [("server", "1 MB a worker"), ("server-background", "0.25 MB, other traffic 0.1"), ("server-compressed", "62 kB"), ("hosts-12", "0.25 MB, 12 hosts"),
               ("hosts-48", "0.25 MB, 48 hosts"), ("hosts-96", "0.25 MB, 96 hosts")]
    rings = [("ring", "ring, 2.5 MB"), ("ring-background", "ring, 2.5 MB, other traffic 0.1")]
    present = {row["experiment"] for row in iterations}
    chosen = [each for each in servers + rings if each[0] in present]
    computing = [("server-compute", "1 MB, 12 ms of computation")]
    text = (HERE / "page.md").read_text()
    for key, value in {"completions": completion_table(completions, chosen),
                       "iterations": iteration_table(iterations, chosen[:1] + computing + chosen[1:]),
                       "parts": parts_table(completions, iterations), "timeouts": timeout_table(completions, iterations),
                       "contention": contention_table(read(out / "contention.csv")), "queue": queue_table(read(out / "queue.csv"))}.items():
        text = text.replace(f"{{{key}}}", value)
    (out / "simulation.md").write_text(text)

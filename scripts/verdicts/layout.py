"""The layout of the pages: numbers, Markdown tables, the facts of a campaign, files."""
import math


def number(x, digits=3):
    if x is None or math.isnan(x):
        return ""
    return f"{x:,.0f}" if abs(x) >= 10 ** (digits - 1) else f"{x:.{digits}g}"


def signed(x):
    return "" if x is None or math.isnan(x) else f"{x + 0.0:+.2f}"


def between(low, high):
    return "" if low is None else f"{low + 0.0:+.2f} to {high + 0.0:+.2f}"


def span(gap):
    """The 95 % interval of a difference."""
    return "" if gap is None else between(*gap.bounds())


def table(header, rows):
    """A Markdown table, without the columns in which nothing stands."""
    used = [i for i in range(len(header)) if any(row[i] != "" for row in rows)]
    lines = ["| " + " | ".join(header[i] for i in used) + " |", "| " + " | ".join("---" for _ in used) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row[i] for i in used) + " |" for row in rows])


def gap_text(gap):
    if gap is None:
        return ""
    return signed(gap.mean) + (" (a run diverged)" if gap.diverged else "")


def epochs(state):
    return f"{int(state['steps']) / int(state['steps_per_epoch']):.1f} epochs"


WHOLE = {"fashion-mnist": 60000, "cifar10": 50000}  # training images


def data(state):
    """The data set, and how much of it: an epoch has as many whole batches as there are."""
    if state["dataset"] not in WHOLE or not state["steps_per_epoch"]:
        return state["dataset"]
    used = int(state["steps_per_epoch"]) * int(state["workers"]) * int(state["batch"])
    share = used / WHOLE[state["dataset"]]
    return state["dataset"] if share > 0.99 else f"{100 * share:.0f} % of {state['dataset']} (some {used:,} training images)"


def save(figure, path):
    import matplotlib.pyplot as plt
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def write(path, parts, quick):
    """quick: the run was of few steps, which every page then says below its title."""
    if quick:
        parts = [parts[0], "**This was a quick run to try the scripts: a few steps with two seeds, from which no verdict follows.**", *parts[1:]]
    with open(path, "w") as file:
        file.write("\n\n".join(parts) + "\n")

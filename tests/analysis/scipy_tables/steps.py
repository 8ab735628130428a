"""Steps: the tables steps, step_lags."""

import numpy as np

from .comparing import compare, constant, done, windows


def pearson(a, b):
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())


def check_steps(load, capture):
    finite = [t for t in capture["tensors"] if t["finite"]]
    means = {(t["name"], t["kind"]): t["mean"] for t in finite}
    means["all", ""] = np.concatenate([t["mean"] for t in finite], axis=1)
    window = windows(capture["iteration"])
    main, lags = {}, {}
    for key, mean in means.items():
        main[key[:1]] = {f"step_lag_{lag}": None for lag in (1, 2, 4, 8, 16)}
        varied = [not constant(x) for x in mean]
        for lag in range(1, min(16, len(mean) - 1) + 1):
            found = [pearson(mean[i], mean[i + lag]) for i in range(len(mean) - lag)
                     if varied[i] and varied[i + lag] and window[i] == window[i + lag]]
            if found:
                lags[(*key, str(lag))] = {"pearson": np.mean(found), "pairs": len(found)}
                if lag in (1, 2, 4, 8, 16):
                    main[key[:1]][f"step_lag_{lag}"] = np.mean(found)
    floors = {"pearson": 1e-3, **{f"step_lag_{lag}": 1e-3 for lag in (1, 2, 4, 8, 16)}}
    compare("steps", done(load("steps")), ["tensor"], main, floors=floors)
    compare("step_lags", load("step_lags"), ["tensor", "kind", "lag"], lags, floors=floors)

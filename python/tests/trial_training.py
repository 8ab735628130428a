"""A training that takes milliseconds a step, and trials of it."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import gradtool

TEACHER = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))


def batches(seed, step, workers):
    for worker in range(workers):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed((seed * 10000 + step) * 100 + worker))
        yield x, (x @ TEACHER).argmax(1)


def make(rate=0.05):
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
    return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def step_losses(trial, step, model):
    """Those of a step, one for each worker."""
    return (F.cross_entropy(model(x), y) for x, y in batches(trial.seed, step, trial.workers))


def run_steps(trial, model, optimizer):
    for step in trial:
        trial.step(model, optimizer, step_losses(trial, step, model))


def train(trial):
    model, optimizer = make()
    run_steps(trial, model, optimizer)
    x, y = next(batches(999, 0, 1))
    with torch.no_grad():
        return {"loss": F.cross_entropy(model(x), y), "accuracy": (model(x).argmax(1) == y).float().mean()}


def attempt(codecs, function=train, **options):
    return gradtool.trial(function, codecs, **{"steps": 60, "workers": 3, "seeds": 2, "progress": False, **options})


def recorded(settings, runs):
    from gradtool._trial_result import TrialResult
    base = {"names": settings["codecs"], "lr_factors": [1.0], "judge": "loss", "higher_is_better": False, "tolerance": None, "steps": 100,
            "workers": 4}
    return TrialResult({**base, **settings}, [{"lr_factor": 1.0, "status": "finished", "steps": 100, "bytes_sent_per_step": 8.0, "note": "",
                                               "message": None, "elements": 9, "reached": True, "losses": list(np.linspace(4, 1, 100)), **run} for run in runs])

#!/usr/bin/env python3
"""Trains models of PyTorch, with a codec in the loop by gradtool.trial, where run.py trains those of `gradtool train`.

    trials.py --out FOLDER --cifar FOLDER --text FILE [--only NAME ...] [--gradtool PROGRAM]

A transformer on images (AdamW, warm-up and cosine), a convolutional network with batch normalisation (SGD, steps) and a GRU on text (Adam,
accumulation of two micro-batches, clipped gradients): other models, trainer and optimizer code than the campaigns', so that the advice does not rest on
one program's trainings. In FOLDER is what run.py leaves of its campaigns, which pages.py takes beside them: pages.py DATA FOLDER --out OUT. Captures
(three windows of 24 steps) and trials are kept there, and the same command goes on where it was stopped. Needed: PyTorch, h5py, SciPy, the Python
package gradtool and the program of the same build; about one processor hour. Payload ratios are those of the replay, since a trial counts what is sent.
"""
import argparse
import csv
import dataclasses
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time

import gradtool
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import predictors
from run import delays, write_csv

WORKERS, SIZE = 4, 16  # ranks, and the edge of an image in pixels
# Codecs about the errors at which arms begin to lose: with and without a memory, biased and unbiased, and some that lose surely.
ARMS = ("fft:theta=0.3,bits=10", "int8:bits=4", "mx:format=e2m1", "natural", "nvfp4", "oktopk:ratio=0.4", "optireduce:loss=0.05", "powersgd:rank=4",
        "powersgd:rank=16", "qgz", "qsgd:bits=4,bucket=512", "sdp4bit", "thc:bits=3", "topk:ratio=0.2", "topk:ratio=0.3,ef=off", "zfp:rate=6")


def images(folder, names):
    """Images of CIFAR-10's binary files, normalised and averaged to SIZE x SIZE pixels, and their classes."""
    rows = np.concatenate([np.fromfile(os.path.join(folder, name), dtype=np.uint8).reshape(-1, 3073) for name in names])
    pixels = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    pixels = (pixels - torch.tensor([.491, .482, .447]).view(1, 3, 1, 1)) / torch.tensor([.247, .243, .262]).view(1, 3, 1, 1)
    return F.avg_pool2d(pixels, 32 // SIZE), torch.from_numpy(rows[:, 0].astype(np.int64))


@dataclasses.dataclass
class Images:
    """CIFAR-10: four of the files of training images train, the fifth and the test images judge."""
    folder: str
    batch: int = 16
    micro_batches: int = 1

    def __post_init__(self):
        self.files = [os.path.join(self.folder, name) for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")]
        names = [os.path.basename(path) for path in self.files]
        self.x, self.y = images(self.folder, names[:4])
        self.held_x, self.held_y = images(self.folder, names[4:])

    def examples(self):
        return len(self.x)

    def loss(self, model, generator):
        """The loss of a batch: images mirrored and shifted by up to two pixels."""
        chosen = torch.randint(0, len(self.x), (self.batch,), generator=generator)
        x = self.x[chosen]
        mirrored = torch.rand(len(x), generator=generator) < .5
        x = F.pad(torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x), (2, 2, 2, 2))
        row, column = torch.randint(0, 5, (2,), generator=generator).tolist()
        return F.cross_entropy(model(x[:, :, row:row + SIZE, column:column + SIZE]), self.y[chosen])

    def judge(self, model):
        scores = torch.cat([model(self.held_x[i:i + 256]) for i in range(0, len(self.held_x), 256)])
        return scores, self.held_y


@dataclasses.dataclass
class Text:
    """A text by characters: the last 60,000 judge."""
    path: str
    batch: int = 8
    micro_batches: int = 2
    length: int = 24

    def __post_init__(self):
        self.files = [self.path]
        with open(self.path) as file:
            text = file.read()
        self.letters = {letter: k for k, letter in enumerate(sorted(set(text)))}
        codes = torch.tensor([self.letters[letter] for letter in text])
        self.train, self.held = codes[:-60000], codes[-60000:]

    def examples(self):
        return len(self.train) // self.length

    def loss(self, model, generator):
        starts = torch.randint(0, len(self.train) - self.length - 1, (self.batch,), generator=generator)
        rows = torch.stack([self.train[i:i + self.length + 1] for i in starts.tolist()])
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def judge(self, model):
        held = self.held[:(len(self.held) - 1) // 256 * 256 + 1]
        return model(held[:-1].view(-1, 256)).flatten(0, 1), held[1:]


class Transformer(nn.Module):
    """A vision transformer of two layers on patches of 4 x 4 pixels."""

    def __init__(self, width=64, patch=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (SIZE // patch) ** 2, width) * .02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0., batch_first=True, norm_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.body(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, letters, width=112):
        super().__init__()
        self.letters, self.body, self.head = nn.Embedding(letters, 48), nn.GRU(48, width, batch_first=True), nn.Linear(width, letters)

    def forward(self, x):
        return self.head(self.body(self.letters(x))[0])


def convolutions():
    """Five layers with batch normalisation, three of which are followed by pooling, and two dense ones."""
    def layer(inputs, outputs, *after):
        return [nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), *after]
    return nn.Sequential(*layer(3, 16), *layer(16, 16, nn.MaxPool2d(2)), *layer(16, 32), *layer(32, 32, nn.MaxPool2d(2)),
                         *layer(32, 96, nn.MaxPool2d(2)), nn.Flatten(), nn.Linear(384, 64), nn.ReLU(), nn.Linear(64, 10))


@dataclasses.dataclass
class Training:
    """model(data) and optimizer(parameters) make a run's; rate(step, steps) is the factor on the learning rate of the step."""
    name: str
    data: object
    steps: int
    seeds: tuple
    model: object
    optimizer: object
    rate: object
    clip: float = math.inf
    dataset: str = "cifar10"

    def make(self):
        model = self.model(self.data)
        optimizer = self.optimizer(model.parameters())
        return model, optimizer, [group["lr"] for group in optimizer.param_groups]

    def set_rate(self, optimizer, rates, step, factor=1.0):
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate * factor * self.rate(step, self.steps)

    def loss(self, model, generator):
        return sum(self.data.loss(model, generator) for _ in range(self.data.micro_batches)) / self.data.micro_batches

    def update(self, model, optimizer):
        if self.clip < math.inf:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        optimizer.step()

    def run(self, trial):
        """A run of gradtool.trial. Returns the loss and accuracy on what is held out."""
        model, optimizer, rates = self.make()
        generator = torch.Generator().manual_seed(trial.seed)
        for step in trial:
            self.set_rate(optimizer, rates, step, trial.lr_factor)
            optimizer.zero_grad()
            trial.backward(model, (self.loss(model, generator) for _ in range(trial.workers)), optimizer)
            self.update(model, optimizer)
        model.eval()
        with torch.no_grad():
            scores, right = self.data.judge(model)
            return {"loss": F.cross_entropy(scores, right).item(), "accuracy": (scores.argmax(1) == right).float().mean().item()}

    def capture(self, path):
        """Three windows of a training without a codec."""
        torch.manual_seed(11)
        model, optimizer, rates = self.make()
        generator = torch.Generator().manual_seed(11)
        with gradtool.Capture(model, path + ".part", iterations=gradtool.windows(self.steps, steps=predictors.WINDOW), optimizer=optimizer, weight=True,
                              micro_batches=WORKERS, micro_batches_as_workers=True, replace=True, name=self.name, dataset=self.dataset, seed=11,
                              batch_size=self.data.batch * self.data.micro_batches) as capture:
            for step in range(self.steps):
                self.set_rate(optimizer, rates, step)
                optimizer.zero_grad()
                total = 0.0
                for worker in range(WORKERS):
                    loss = self.loss(model, generator) / WORKERS
                    loss.backward()
                    total += loss.item()
                    if worker < WORKERS - 1:
                        capture.micro_batch()
                capture.step(total)
                self.update(model, optimizer)
        os.replace(path + ".part", path)


def warm_cosine(step, steps):
    return min(1, (step + 1) / 40) * .5 * (1 + math.cos(math.pi * step / steps))


def in_steps(step, steps):
    return .2 ** ((step >= int(steps * .55)) + (step >= int(steps * .82)))


def flat_then_linear(step, steps):
    return 1 if step < .6 * steps else max(.05, (steps - step) / (.4 * steps))


def trainings(options):
    cifar, text = (lambda: Images(options.cifar)), (lambda: Text(options.text))
    return {
        "vit": lambda: Training("vit", cifar(), 600, (1, 2), lambda _: Transformer(), lambda p: torch.optim.AdamW(p, lr=2e-3, weight_decay=.05), warm_cosine),
        # Runs of this one scatter by more than a point.
        "conv": lambda: Training("conv", cifar(), 450, (1, 2, 3, 4, 5, 6), lambda _: convolutions(),
                                 lambda p: torch.optim.SGD(p, lr=.05, momentum=.9, weight_decay=5e-4), in_steps),
        "gru": lambda: Training("gru", text(), 400, (1, 2), lambda data: Recurrent(len(data.letters)), lambda p: torch.optim.Adam(p, lr=5e-3),
                                flat_then_linear, clip=1.0, dataset="text"),
    }


def errors_of(training, path, options):
    """Rows of replay.csv and predictors.csv, and {arm: (codec, params, payload ratio)}."""
    listed = subprocess.run([options.gradtool, "list", "codecs", "--json", "-"], check=True, stdout=subprocess.PIPE, text=True).stdout
    codecs = {row["name"]: row for row in json.loads(listed)}
    replay, found, arms = [], [], {}
    for phase, first in zip(predictors.PHASES, predictors.windows_of(path)):
        for steps in (predictors.SHORT, predictors.WINDOW):
            rows = [row for row in predictors.bench(path, ARMS, first, steps, options) if row["codec"] not in ("none", "noop")]
            for arm, row in zip(ARMS, rows, strict=True):
                arms[arm] = row["codec"], row["params"], float(row["payload_ratio"])
                if row["status"] != "ok" or row["reached"] != "true":
                    continue
                memory = int(delays(row, codecs[row["codec"]]))
                found.append({"campaign": training.name, "phase": phase, "first_step": first, "steps": steps, "arm": arm, "codec": row["codec"],
                              "delays": memory, **{error: row[error] for error in predictors.ERRORS}})
                if steps == predictors.WINDOW and phase != "late":  # replay.csv has early and middle
                    replay.append({"campaign": training.name, "moment": phase, "delays": memory, "reached": 1,
                                   **{name: row[name] for name in ("first_step", "last_step", "codec", "params", "nmse", "cumulative_nmse", "payload_ratio", "wire_ratio")},
                                   "arm": arm})
    return replay, found, arms


def write_training(training, result, arms, folder):
    """train.csv, as that of `gradtool train`, with one row for a run. Returns the elements of a gradient, and what the runs were made with."""
    names = dict(zip(("none", *(f"{codec}:{params}".removesuffix(":default") for codec, params, _ in arms.values())), ("none", *ARMS)))
    rows = []
    with open(result) as file:
        record = json.load(file)
    for run in record["runs"]:
        arm = names[run["codec"]]
        if run["status"] not in ("finished", "diverged"):
            sys.exit(f"trials.py: {training.name}: {arm} with seed {run['seed']} has {run['status']}: {run['message']}; the same command tries it again")
        codec, params, ratio = ("none", "default", 1.0) if arm == "none" else arms[arm]
        rows.append({"codec": codec, "params": params, "seed": run["seed"], "epoch": 1, "step": run["steps"],
                     "status": run["status"], "test_loss": run["metrics"].get("loss", ""),
                     "test_accuracy": run["metrics"].get("accuracy", ""), "wire_bytes": run["bytes_sent_per_step"] * run["steps"],
                     "payload_bytes": 4 * record["elements"] * run["steps"] / ratio})
    write_csv(os.path.join(folder, training.name, "train.csv"), rows)
    return record["elements"], sorted({run.get("producer", "not recorded") for run in record["runs"]})


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def run(name, make, options):
    training, folder = make(), os.path.join(options.out, name)
    os.makedirs(folder, exist_ok=True)
    path, result, before = os.path.join(folder, "capture.h5"), os.path.join(folder, "trial.json"), time.process_time()
    if not os.path.exists(path):
        training.capture(path)
    replay, found, arms = errors_of(training, path, options)
    gradtool.trial(training.run, ["none", *ARMS], steps=training.steps, workers=WORKERS, seeds=training.seeds, stop_early=False, judge="accuracy",
                   higher_is_better=True, tolerance=0.01, name=name, out=result)
    with open(os.path.join(folder, "seconds"), "a") as file:
        file.write(f"{time.process_time() - before:.1f}\n")
    with open(os.path.join(folder, "seconds")) as file:
        hours = sum(map(float, file)) / 3600
    elements, builds = write_training(training, result, arms, options.out)
    batch = training.data.batch * training.data.micro_batches
    state = {"campaign": name, "status": "complete", "reason": "", "model": name, "dataset": training.dataset, "workers": WORKERS, "batch": batch,
             "steps": training.steps, "seeds": " ".join(map(str, training.seeds)), "elements": elements,
             "steps_per_epoch": max(1, training.data.examples() // (WORKERS * batch)), "compared_with": name, "gradtool": ", ".join(builds),
             "data_sha256": " ".join(f"{os.path.basename(file)}:{sha256(file)}" for file in training.data.files),
             "processor_hours": f"{hours:.3g}", "quick": 0, "command": f"scripts/verdicts/trials.py --out FOLDER --cifar CIFAR10_FOLDER --text TEXT --only {name}"}
    named = [{"campaign": name, "arm": "none", "codec": "none", "params": "default"}]
    named += [{"campaign": name, "arm": arm, "codec": codec, "params": params} for arm, (codec, params, _) in arms.items()]
    for table, rows in (("campaigns", [state]), ("arms", named), ("replay", replay), ("predictors", found)):
        target = os.path.join(options.out, table + ".csv")
        others = [row for row in read_rows(target) if row["campaign"] != name]
        write_csv(target, others + rows)


def read_rows(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of the runs, made where it is missing")
    parser.add_argument("--gradtool", default="gradtool", help="program of the package's build [the one in PATH]")
    parser.add_argument("--cifar", required=True, help="folder with CIFAR-10's binary files")
    parser.add_argument("--text", required=True, help="any text, a megabyte or more")
    parser.add_argument("--only", action="append", metavar="NAME", help="repeatable: vit, conv, gru [all]")
    options = parser.parse_args()
    if not shutil.which(options.gradtool):
        sys.exit(f"trials.py: there is no program {options.gradtool}")
    torch.set_num_threads(1)
    known = trainings(options)
    for name in options.only or known:
        if name not in known:
            sys.exit(f"trials.py: there is no training {name}; there are {', '.join(known)}")
    for name in options.only or known:
        run(name, known[name], options)


if __name__ == "__main__":
    main()

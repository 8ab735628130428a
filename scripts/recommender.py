#!/usr/bin/env python3
"""Captures and tries a recommender whose gradients are of very different sizes: two embedding tables, 13 inputs that nobody scaled, Adam.

    recommender.py capture FILE.h5                       400 steps, captured early, midway and late
    recommender.py trial FILE.json CODEC ... [--steps 600]  the same training with codecs, four workers, three seeds, judged by accuracy

The data are drawn: a click is likely where a user's and an item's hidden vectors agree, and by a sum of the inputs. Needs PyTorch and gradtool.
"""
import argparse

import torch
from torch import nn

import gradtool

USERS, ITEMS, WIDTH, WORKERS, BATCH = 3000, 1500, 32, 4, 256
HIDDEN = torch.Generator().manual_seed(7)
USER_TASTES, ITEM_TASTES = torch.randn(USERS, 8, generator=HIDDEN), torch.randn(ITEMS, 8, generator=HIDDEN)
INPUT_WEIGHTS = torch.randn(13, generator=HIDDEN) / 4


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)
        self.dense = nn.Linear(13, 16)
        self.mlp = nn.Sequential(nn.Linear(3 * WIDTH + 16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users, items, inputs):
        user, item = self.user(users), self.item(items)
        return self.mlp(torch.cat([user, item, user * item, torch.relu(self.dense(inputs))], 1)).squeeze(1)


def batch(random, size=BATCH):
    users = (torch.rand(size, generator=random) ** 3 * USERS).long()
    items = torch.multinomial(1 / torch.arange(1, ITEMS + 1).float(), size, True, generator=random)
    inputs = torch.randn(size, 13, generator=random)
    score = (USER_TASTES[users] * ITEM_TASTES[items]).sum(1) + inputs @ INPUT_WEIGHTS + torch.randn(size, generator=random)
    return users, items, 20 * inputs, (score > 0).float()


def loss_of(model, drawn):
    return nn.functional.binary_cross_entropy_with_logits(model(*drawn[:3]), drawn[3])


def capture(path, steps=400):
    torch.manual_seed(0)
    model, random = Recommender(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with gradtool.Capture(model, path, iterations=gradtool.windows(steps), optimizer=optimizer, batch_size=BATCH, micro_batches=WORKERS,
                          micro_batches_as_workers=True) as captured:
        for _ in range(steps):
            optimizer.zero_grad()
            total = 0.0
            for worker in range(WORKERS):
                loss = loss_of(model, batch(random)) / WORKERS
                loss.backward()
                total += float(loss)
                if worker < WORKERS - 1:
                    captured.micro_batch()
            captured.step(torch.tensor(total))
            optimizer.step()


def train(trial):
    model, random = Recommender(), torch.Generator().manual_seed(trial.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in trial:
        trial.step(model, optimizer, (loss_of(model, batch(random)) for _ in range(trial.workers)))
    drawn = batch(torch.Generator().manual_seed(99), 8000)
    with torch.no_grad():
        return {"accuracy": ((model(*drawn[:3]) > 0) == (drawn[3] > 0.5)).float().mean()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("capture", "trial"))
    parser.add_argument("out")
    parser.add_argument("codecs", nargs="*")
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    if options.what == "capture":
        return capture(options.out)
    print(gradtool.trial(train, options.codecs, steps=options.steps, workers=WORKERS, seeds=3, judge="accuracy", higher_is_better=True, tolerance=0.01,
                         out=options.out))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains a small language model with several data-parallel processes on this machine, and captures every one's gradients.

    capture_language_model.py --model llama --text book.txt --steps 300 --out llama.h5 --checkpoint llama.pt
    capture_language_model.py --from-checkpoint llama.pt --lora --text other.txt --out lora.h5

Any text file does. Processes are joined by gloo through a file, without ports. Float32 models train under
DistributedDataParallel. With --dtype bf16, parameters and gradients are bfloat16 and AdamW works on float32 copies of the
parameters; as gloo of older PyTorch has no bfloat16, processes then average by themselves, in float32.
Needs torch, h5py and gradtool's Python package (PYTHONPATH=python/src in a checkout).
"""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import sys
import tempfile
import time

import torch
from torch import distributed as dist
from torch import multiprocessing
from torch import nn

import gradtool
import models
import text

PHASES = ("early", "middle", "late")


def captured_iterations(phases, steps, consecutive):
    """Iterations of each phase: early ones after a twentieth of the training, the middle, and the last."""
    starts = {"early": steps // 20, "middle": steps // 2, "late": max(steps - consecutive, 0)}
    return sorted({i for phase in phases for i in range(starts[phase], min(starts[phase] + consecutive, steps))})


def learning_rate(step, steps, peak):
    """Linear warm-up over a twentieth of the training, then a cosine down to a tenth."""
    warm_up = max(steps // 20, 1)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(steps - warm_up, 1))))


def build(options, checkpoint):
    """The model, the same in every process, and the tokenizer's merges."""
    torch.manual_seed(options.seed)
    if checkpoint:
        shape, merges = models.Shape(**checkpoint["shape"]), checkpoint["merges"]
        model = models.Decoder(shape)
        model.load_state_dict(checkpoint["weights"])
    else:
        shape, merges = models.SIZES[options.model][options.size], options.merges
        wanted = {"vocabulary": 256 + len(merges), "context": options.context, "active": options.active}
        model = models.Decoder(dataclasses.replace(shape, **{key: value for key, value in wanted.items() if value}))
    if options.lora:
        models.add_adapters(model, options.lora)
    return model, merges


class Optimizer:
    """AdamW on float32 copies of the parameters; on the parameters themselves where they are float32."""

    def __init__(self, parameters, rate):
        self.parameters = parameters
        self.masters = [p if p.dtype == torch.float32 else p.detach().float() for p in parameters]
        groups = [{"params": [m for m in self.masters if m.dim() >= 2], "weight_decay": 0.1},
                  {"params": [m for m in self.masters if m.dim() < 2], "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW([group for group in groups if group["params"]], rate, betas=(0.9, 0.95))

    def step(self, rate):
        for master, parameter in zip(self.masters, self.parameters):
            if master is not parameter:
                master.grad = parameter.grad.float()
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters):
                if master is not parameter:
                    parameter.copy_(master)


def average(parameters, ranks):
    """Averages like DistributedDataParallel for bfloat16: every gradient becomes the mean over processes, added up in float32."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([gradient.float().flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for parameter, gradient, part in zip(parameters, gradients, (flat / ranks).split([p.numel() for p in parameters])):
        parameter.grad = gradient.copy_(part.view_as(gradient))


def validation_loss(model, batches):
    model.eval()
    with torch.no_grad():
        loss = float(model(*(torch.from_numpy(part) for part in batches.for_validation())))
    model.train()
    return loss


def train(rank, options, rendezvous, checkpoint):
    torch.set_num_threads(max((os.cpu_count() or 1) // options.ranks, 1))
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=options.ranks)
    inner, merges = build(options, checkpoint)
    half = options.dtype == "bf16"
    inner.to(torch.bfloat16 if half else torch.float32)
    parameters = [p for p in inner.parameters() if p.requires_grad]
    # An expert without tokens takes no part in the backward pass of this process, and DDP must not wait for it.
    model = inner if half else nn.parallel.DistributedDataParallel(inner, find_unused_parameters=inner.shape.kind == "moe")
    optimizer = Optimizer(parameters, options.learning_rate)
    batches = text.Batches(options.tokens, inner.shape.context, options.batch, options.seed)
    say = print if rank == 0 else lambda *_, **__: None
    total, trained = (sum(p.numel() for p in several) for several in (inner.parameters(), parameters))
    name = f"{inner.shape.kind}-{models.parameter_count(inner.shape) / 1e6:.2g}M" + (f"-lora{options.lora}" if options.lora else "")
    say(f"{name}: {total:,} parameters, {trained:,} of them trained, as {options.dtype}; {options.ranks} processes, "
        f"{options.batch * inner.shape.context} tokens each in a step", flush=True)
    before, began = validation_loss(inner, batches), time.time()
    say(f"loss on held-out text before: {before:.3f}", flush=True)
    with gradtool.Capture(model, options.out, iterations=options.iterations, optimizer=optimizer.adam, replace=True,
                          name=name, dataset=options.dataset, seed=options.seed, batch_size=options.batch) as capture:
        for step in range(options.steps):
            tokens, targets = (torch.from_numpy(part) for part in batches.at(rank, step))
            inner.zero_grad(set_to_none=True)
            loss = model(tokens, targets)
            loss.backward()
            rate = learning_rate(step, options.steps, options.learning_rate)
            capture.step(loss, learning_rate=rate)
            if half:
                average(parameters, options.ranks)
            optimizer.step(rate)
            if step % max(options.steps // 10, 1) == 0 or step == options.steps - 1:
                say(f"step {step:5d}  loss {float(loss):.3f}  {time.time() - began:.0f} s", flush=True)
    after = validation_loss(inner, batches)
    say(f"loss on held-out text: {before:.3f} before, {after:.3f} after {options.steps} steps; wrote {options.out}: iterations "
        f"{', '.join(map(str, options.iterations))}", flush=True)
    if options.checkpoint and rank == 0:
        # Text, because the loader of older PyTorch that runs no code of a file reads no float.
        torch.save({"shape": json.dumps(dataclasses.asdict(inner.shape)), "merges": merges, "weights": inner.float().state_dict()},
                   options.checkpoint)
        say(f"wrote {options.checkpoint}")
    dist.barrier()
    dist.destroy_process_group()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", choices=models.SIZES, help="architecture; a checkpoint has its own")
    add("--size", choices=("tiny", "nano", "small"), default="nano", help="0.1, 0.6 or 5 million parameters [nano]")
    add("--text", required=True, type=pathlib.Path, help="text file to train on")
    add("--part", default="0:1", help="share of it, 0:0.5 for its first half [all]")
    add("--vocabulary", type=int, default=1024, help="tokens of the byte-pair encoding; 256 is bytes alone [1024]")
    add("--dataset", help="what the text is, for the file [its name]")
    add("--ranks", type=int, default=4, help="data-parallel processes [4]")
    add("--steps", type=int, default=200, help="training steps [200]")
    add("--batch", type=int, default=8, help="windows of text for each process and step [8]")
    add("--context", type=int, help="tokens of a window [the size's]")
    add("--active", type=int, help="moe: experts for each token [2]")
    add("--learning-rate", type=float, default=2e-3, help="largest, after warm-up [0.002]")
    add("--capture", default=",".join(PHASES), help="phases to capture: early, middle, late [all]")
    add("--consecutive", type=int, default=5, help="consecutive steps to capture in each phase [5]")
    add("--dtype", choices=("fp32", "bf16"), default="fp32", help="of parameters and gradients [fp32]")
    add("--lora", type=int, nargs="?", const=8, help="freeze the model and train adapters of this rank [8]")
    add("--from-checkpoint", type=pathlib.Path, help="weights and tokenizer to begin with")
    add("--checkpoint", type=pathlib.Path, help="write weights and tokenizer after training")
    add("--out", required=True, type=pathlib.Path, help="gradient file to write")
    add("--seed", type=int, default=1, help="of weights and batches [1]")
    options = parser.parse_args(arguments)
    phases = options.capture.split(",")
    if not set(phases) <= set(PHASES):
        parser.error(f"--capture is '{options.capture}'; valid are {', '.join(PHASES)}, with commas between them")
    if bool(options.model) == bool(options.from_checkpoint):
        parser.error("give either --model or --from-checkpoint")
    if min(options.ranks, options.steps, options.batch, options.consecutive, options.lora or 1, options.context or 1) < 1:
        parser.error("--ranks, --steps, --batch, --consecutive, --context and --lora are 1 or more")
    if options.lora and options.checkpoint:
        parser.error("--checkpoint holds whole models; it does not go with --lora")
    for path in (options.text, options.from_checkpoint):
        if path and not path.is_file():
            parser.error(f"there is no file {path}")
    try:
        begin, end = (float(part) for part in options.part.split(":"))
        if not 0 <= begin < end <= 1:
            raise ValueError
    except ValueError:
        parser.error(f"--part is '{options.part}'; valid is BEGIN:END with 0 <= BEGIN < END <= 1")
    options.bounds = begin, end
    options.iterations = captured_iterations(phases, options.steps, options.consecutive)
    options.dataset = options.dataset or options.text.name
    return parser, options


def main(arguments):
    parser, options = parse(arguments)
    checkpoint = None
    if options.from_checkpoint:
        try:
            checkpoint = torch.load(options.from_checkpoint, weights_only=True)  # runs no code of the file
            checkpoint["shape"] = json.loads(checkpoint["shape"])
            models.Decoder(models.Shape(**checkpoint["shape"])).load_state_dict(checkpoint["weights"])
        except Exception as error:  # pylint: disable=broad-except
            first = str(error).partition("\n")[0]
            parser.exit(3, f"{options.from_checkpoint} is no checkpoint that --checkpoint wrote ({first})\n")
    data = options.text.read_bytes()
    tokenizer = text.Tokenizer(checkpoint["merges"]) if checkpoint else text.tokenizer_of(data, options.vocabulary)
    options.merges = tokenizer.merges
    options.tokens = tokenizer.encode(data[int(options.bounds[0] * len(data)):int(options.bounds[1] * len(data))])
    context = checkpoint["shape"]["context"] if checkpoint else options.context or models.SIZES[options.model][options.size].context
    try:
        text.Batches(options.tokens, context, options.batch, options.seed)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (options, os.path.join(folder, "rendezvous"), checkpoint), options.ranks)


if __name__ == "__main__":
    main(sys.argv[1:])

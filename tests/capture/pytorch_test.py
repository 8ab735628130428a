#!/usr/bin/env python3
"""Every model computes what PyTorch in Python computes from the same weights: the loss, and the gradient of every tensor. The forward
passes below are written from the papers, as functions of the weights by name. Usage: pytorch_test.py GRADTOOL"""
import os
import sys
import tempfile

import h5py
import numpy as np

from synthetic import check, run

try:
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(missing)
    sys.exit(77)

program = os.path.abspath(sys.argv[1])
IMAGES, SIDE, SEQUENCES, LENGTH = 4, 32, 4, 16


def conv(x, w, name, stride=1, padding=0):
    return F.conv2d(x, w[name + ".weight"], w.get(name + ".bias"), stride, padding)


def linear(x, w, name):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def norm(x, w, name):
    return F.batch_norm(x, None, None, w[name + ".weight"], w[name + ".bias"], True)


def layer_norm(x, w, name, epsilon):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * w[name + ".weight"] + w[name + ".bias"]


def mlp(x, w):
    return linear(F.relu(linear(F.relu(linear(x.flatten(1), w, "fc1")), w, "fc2")), w, "fc3")


def alexnet(x, w):
    x = F.max_pool2d(F.relu(conv(x, w, "features.0", 4, 2)), 3, 2)
    x = F.max_pool2d(F.relu(conv(x, w, "features.3", 1, 2)), 3, 2)
    for name in ("features.6", "features.8", "features.10"):
        x = F.relu(conv(x, w, name, 1, 1))
    x = F.adaptive_avg_pool2d(F.max_pool2d(x, 3, 2), 6).flatten(1)
    return linear(F.relu(linear(F.relu(linear(x, w, "classifier.1")), w, "classifier.4")), w, "classifier.6")


def vgg16_cifar(x, w):
    position = 0
    for layers in (2, 2, 3, 3, 3):
        for _ in range(layers):
            x = F.relu(norm(conv(x, w, f"features.{position}", 1, 1), w, f"features.{position + 1}"))
            position += 3
        x = F.max_pool2d(x, 2)
        position += 1
    return linear(x.flatten(1), w, "classifier")


def basic(x, w, name, stride):
    y = F.relu(norm(conv(x, w, name + ".conv1", stride, 1), w, name + ".bn1"))
    return norm(conv(y, w, name + ".conv2", 1, 1), w, name + ".bn2")


def bottleneck(x, w, name, stride):
    y = F.relu(norm(conv(x, w, name + ".conv1"), w, name + ".bn1"))
    y = F.relu(norm(conv(y, w, name + ".conv2", stride, 1), w, name + ".bn2"))
    return norm(conv(y, w, name + ".conv3"), w, name + ".bn3")


def projected(x, y, w, name, stride):
    if name + ".downsample.0.weight" in w:
        x = norm(conv(x, w, name + ".downsample.0", stride), w, name + ".downsample.1")
    return x


def padded(x, y, w, name, stride):
    extra = y.shape[1] - x.shape[1]
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, extra // 2, extra - extra // 2))


def resnet(block, shortcut, stages):
    def forward(x, w):
        large = w["conv1.weight"].shape[-1] == 7
        x = F.relu(norm(conv(x, w, "conv1", 2 if large else 1, 3 if large else 1), w, "bn1"))
        if large:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage, count in enumerate(stages):
            for i in range(count):
                name, stride = f"layer{stage + 1}.{i}", 2 if stage > 0 and i == 0 else 1
                y = block(x, w, name, stride)
                x = F.relu(shortcut(x, y, w, name, stride) + y)
        return linear(x.mean((2, 3)), w, "fc")
    return forward


def densenet(x, w):
    x = conv(x, w, "features.conv0", 1, 1)
    for block in (1, 2, 3):
        for layer in range(1, 17):
            name = f"features.denseblock{block}.denselayer{layer}"
            y = conv(F.relu(norm(x, w, name + ".norm1")), w, name + ".conv1")
            x = torch.cat((x, conv(F.relu(norm(y, w, name + ".norm2")), w, name + ".conv2", 1, 1)), 1)
        if block < 3:
            name = f"features.transition{block}"
            x = F.avg_pool2d(conv(F.relu(norm(x, w, name + ".norm")), w, name + ".conv"), 2)
    return linear(F.relu(norm(x, w, "features.norm5")).mean((2, 3)), w, "classifier")


def attention(x, w, name, inner, outer, heads, causal):
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in linear(x, w, name + inner).chunk(3, -1))
    scores = torch.einsum("bhid,bhjd->bhij", query, key) / query.shape[-1] ** 0.5
    if causal:
        scores = scores + torch.full(scores.shape[-2:], float("-inf"), dtype=x.dtype).triu(1)
    mixed = torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), value)
    return linear(mixed.transpose(1, 2).flatten(2), w, name + outer)


def vit_tiny(x, w):
    size = w["patch_embed.proj.weight"].shape[-1]
    x = conv(x, w, "patch_embed.proj", size).flatten(2).transpose(1, 2)
    x = torch.cat((w["cls_token"].expand(len(x), 1, -1), x), 1) + w["pos_embed"]
    for layer in range(12):
        name = f"blocks.{layer}"
        x = x + attention(layer_norm(x, w, name + ".norm1", 1e-6), w, name, ".attn.qkv", ".attn.proj", 3, False)
        hidden = linear(layer_norm(x, w, name + ".norm2", 1e-6), w, name + ".mlp.fc1")
        x = x + linear(hidden * 0.5 * (1 + torch.erf(hidden / 2 ** 0.5)), w, name + ".mlp.fc2")
    return linear(layer_norm(x, w, "norm", 1e-6)[:, 0], w, "head")


def gpt(tokens, w):
    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][torch.arange(tokens.shape[1])]
    for layer in range(3):
        name = f"transformer.h.{layer}"
        x = x + attention(layer_norm(x, w, name + ".ln_1", 1e-5), w, name, ".attn.c_attn", ".attn.c_proj", 3, True)
        h = linear(layer_norm(x, w, name + ".ln_2", 1e-5), w, name + ".mlp.c_fc")
        h = 0.5 * h * (1 + torch.tanh((2 / np.pi) ** 0.5 * (h + 0.044715 * h ** 3)))
        x = x + linear(h, w, name + ".mlp.c_proj")
    return layer_norm(x, w, "transformer.ln_f", 1e-5) @ w["transformer.wte.weight"].T


def lstm(tokens, w):
    x = w["encoder.weight"][tokens]
    for layer in (0, 1):
        outputs, hidden, cell = [], torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            gates = (x[:, step] @ w[f"rnn.weight_ih_l{layer}"].T + w[f"rnn.bias_ih_l{layer}"]
                     + hidden @ w[f"rnn.weight_hh_l{layer}"].T + w[f"rnn.bias_hh_l{layer}"])
            into, forget, candidate, out = gates.chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(candidate)
            hidden = torch.sigmoid(out) * torch.tanh(cell)
            outputs.append(hidden)
        x = torch.stack(outputs, 1)
    return linear(x, w, "decoder")


# The forward pass, and the size to which images are enlarged.
MODELS = {
    "mlp": (mlp, SIDE), "alexnet": (alexnet, 64), "vgg16-cifar": (vgg16_cifar, SIDE),
    "resnet18": (resnet(basic, projected, (2, 2, 2, 2)), SIDE), "resnet50": (resnet(bottleneck, projected, (3, 4, 6, 3)), 64),
    "resnet20": (resnet(basic, padded, (3, 3, 3)), SIDE), "resnet110": (resnet(basic, padded, (18, 18, 18)), SIDE),
    "densenet-bc-100": (densenet, SIDE), "vit-tiny": (vit_tiny, SIDE), "gpt-nano": (gpt, None), "lstm": (lstm, None),
    "char-rnn": (lstm, None),
}


def write_data(folder):
    """Writes as many images and sequences as one batch has, so that the order in which a batch takes them does not matter."""
    rng = np.random.default_rng(7)
    pixels = rng.integers(0, 256, (IMAGES, 3, SIDE, SIDE), dtype=np.uint8)
    labels = rng.integers(0, 10, IMAGES, dtype=np.uint8)
    with open(os.path.join(folder, "data_batch_1.bin"), "wb") as file:
        for label, image in zip(labels, pixels):
            file.write(bytes([label]) + image.tobytes())
    text = rng.integers(0, 256, 80, dtype=np.uint8)  # 72 bytes for training
    with open(os.path.join(folder, "text"), "wb") as file:
        file.write(text.tobytes())
    scaled = pixels / 255.0
    mean, deviation = scaled.mean((0, 2, 3), keepdims=True), scaled.std((0, 2, 3), keepdims=True)
    images = torch.from_numpy((scaled - mean) / deviation)
    tokens = torch.from_numpy(text.astype(np.int64))
    inputs, targets = (tokens[first:first + SEQUENCES * LENGTH].view(SEQUENCES, LENGTH) for first in (0, 1))
    return images, torch.from_numpy(labels.astype(np.int64)), inputs, targets


def loss_of(forward, images, side, labels, weights):
    if side is None:
        logits, answers = forward(images, weights).flatten(0, 1), labels.flatten()
    else:
        x = F.interpolate(images.to(next(iter(weights.values())).dtype), (side, side), mode="bilinear", align_corners=False)
        logits, answers = forward(x, weights), labels
    return -torch.log_softmax(logits, -1)[torch.arange(len(answers)), answers].mean()


def compare(folder, model, data):
    """Ends the test unless loss and gradients are those of PyTorch to 1e-5, in float32 or in float64. A rounding error can decide on which
    side of 0 a ReLU is, which changes a gradient of 10^5 elements by 10^-3; only the same operators of the same library on equally
    aligned memory round alike. So where PyTorch's own float32 is off, four times that is accepted."""
    forward, side = MODELS[model]
    images, labels, tokens, targets = data
    path = os.path.join(folder, "capture.h5")
    chosen = (["--data-dir", os.path.join(folder, "text"), "--sequence-length", LENGTH, "--batch-size", SEQUENCES]
              if side is None else
              ["--dataset", "cifar10", "--data-dir", folder, "--image-size", side, "--batch-size", IMAGES])
    done = run(program, "capture", "--model", model, "--workers", "1", "--steps", "1", "--with", "weight", "--threads", "1",
               "--out", path, "--force", *map(str, chosen))
    check(done.returncode == 0, f"{model}: {done.stderr}")
    with h5py.File(path) as file:
        tensors = {t.attrs["name"]: t for t in file["tensors"].values()}
        stored = {name: t["weight"][0].reshape(t.attrs["shape"]) for name, t in tensors.items()}
        gradients = {name: t["gradient"][0, 0] for name, t in tensors.items()}
        loss = float(file["steps/loss"][0, 0])

    def reference(precision):
        weights = {name: torch.from_numpy(values).to(precision).requires_grad_() for name, values in stored.items()}
        expected = loss_of(forward, tokens if side is None else images, side, targets if side is None else labels, weights)
        expected.backward()
        check(abs(loss - expected.item()) < 1e-5 * max(1.0, loss), f"{model}: loss {loss}, not {expected.item()}")
        unused = [name for name, weight in weights.items() if weight.grad is None]
        check(not unused, f"{model}: {unused} are not used")
        return {name: weight.grad.numpy().ravel() for name, weight in weights.items()}

    total = np.linalg.norm([np.linalg.norm(g) for g in gradients.values()])

    def error(gradient, reference):
        """The largest of a tensor. A bias before a normalisation has no gradient but rounding errors: those are measured by the whole."""
        return max(np.linalg.norm(gradient[name] - reference[name]) / (np.linalg.norm(reference[name]) + 1e-2 * total)
                   for name in reference)

    in_float = reference(torch.float32)
    single = error(gradients, in_float)
    print(f"{model}: loss {loss:.6f}, largest error of a tensor {single:.1e} in float32", flush=True)
    if single >= 1e-5:
        in_double = reference(torch.float64)
        double, own = error(gradients, in_double), error(in_float, in_double)
        print(f"{model}: {double:.1e} in float64; PyTorch's own {own:.1e}", flush=True)
        check(double < 1e-5 or double < 4 * own < 0.2, f"{model}: a gradient is off by {double}")


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as root:
    values = write_data(root)
    for name_of_model in MODELS:
        compare(root, name_of_model, values)
print("ok")

"""Decoders of three kinds, small enough to train on two processor cores, written from their published descriptions.

gpt    GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019): LayerNorm before each part, GELU,
       learned positions, biases, and an output head that is the embedding (tied)
llama  Llama 2 (Touvron et al., arXiv 2307.09288): RMSNorm, SwiGLU, rotary positions, grouped-query attention, no biases, and
       an output head of its own
moe    llama with a mixture of experts in the place of every MLP (Jiang et al., Mixtral of Experts, arXiv 2401.04088), and the
       load-balancing loss of the Switch Transformer (Fedus et al., arXiv 2101.03961, equation 4)

`LowRank` is the adapter of LoRA (Hu et al., arXiv 2106.09685). Layers are those of torch.nn wherever it has them, so that a
capture labels their tensors by itself: embedding, linear, norm, bias.
"""
import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Shape:
    """The dimensions from which a model's size follows. Counts are of elements, heads or tokens; `hidden` is the width inside an MLP."""
    kind: str = "gpt"
    layers: int = 4
    width: int = 96
    heads: int = 4
    kv_heads: int = 2  # llama and moe: heads of keys and values, each shared by heads / kv_heads queries
    hidden: int = 384
    context: int = 64
    vocabulary: int = 1024
    experts: int = 4   # moe alone, as are the next two
    active: int = 2    # experts that a token goes through
    balance: float = 0.01  # weight of the load-balancing loss


SIZES = {
    "gpt": {"tiny": Shape(layers=2, width=32, hidden=128, context=32), "nano": Shape(),
            "small": Shape(layers=6, width=256, heads=8, hidden=1024, context=128)},
    "llama": {"tiny": Shape("llama", layers=2, width=32, hidden=88, context=32), "nano": Shape("llama", hidden=256),
              "small": Shape("llama", layers=6, width=256, heads=8, hidden=688, context=128)},
    "moe": {"tiny": Shape("moe", layers=2, width=32, hidden=44, context=32), "nano": Shape("moe", layers=3, hidden=128),
            "small": Shape("moe", layers=6, width=256, heads=8, hidden=344, context=128)},
}


def parameter_count(shape):
    """Parameters of a model of this shape, by the formula of its publication; nothing is allocated."""
    width, hidden = shape.width, shape.hidden
    if shape.kind == "gpt":
        attention, mlp = 4 * width * width + 4 * width, 2 * width * hidden + hidden + width
        embeddings, norm = (shape.vocabulary + shape.context) * width, 2 * width
    else:
        attention = 2 * width * width + 2 * width * (width // shape.heads * shape.kv_heads)
        mlp = 3 * width * hidden
        if shape.kind == "moe":
            mlp = shape.experts * mlp + shape.experts * width
        embeddings, norm = 2 * shape.vocabulary * width, width
    return embeddings + shape.layers * (attention + mlp + 2 * norm) + norm


def wide(x):
    """In float32 at least: where the model is bfloat16, sums and exponentials are not."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        exact = wide(x)
        return (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rotary(x, base=10000.0):
    """Turns each pair (i, i + d/2) of a head of d elements by an angle that grows with the position. x: [..., tokens, d]"""
    tokens, half = x.shape[-2], x.shape[-1] // 2
    rate = base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angle = torch.arange(tokens, dtype=torch.float32, device=x.device)[:, None] * rate
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        gpt = shape.kind == "gpt"
        self.heads, self.kv_heads, self.rotary = shape.heads, shape.heads if gpt else shape.kv_heads, not gpt
        self.size = shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.width, bias=gpt)
        self.key = nn.Linear(shape.width, self.kv_heads * self.size, bias=gpt)
        self.value = nn.Linear(shape.width, self.kv_heads * self.size, bias=gpt)
        self.output = nn.Linear(shape.width, shape.width, bias=gpt)

    def forward(self, x):
        batch, tokens, width = x.shape
        query = self.query(x).view(batch, tokens, self.heads, self.size).transpose(1, 2)
        key = self.key(x).view(batch, tokens, self.kv_heads, self.size).transpose(1, 2)
        value = self.value(x).view(batch, tokens, self.kv_heads, self.size).transpose(1, 2)
        if self.rotary:
            query, key = rotary(query), rotary(key)
        if self.kv_heads != self.heads:
            key, value = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (key, value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.size)
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        weights = functional.softmax(wide(scores.masked_fill(later, -math.inf)), -1).to(x.dtype)
        return self.output((weights @ value).transpose(1, 2).reshape(batch, tokens, width))


class GeluMLP(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class SwiGLU(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A router sends each token through its `active` best experts. An expert that gets no token has no gradient."""

    def __init__(self, shape):
        super().__init__()
        self.active = shape.active
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(shape.width, shape.hidden) for _ in range(shape.experts))
        self.imbalance = 0.0  # of the last forward pass; 1 where all experts get the same

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        chance = functional.softmax(wide(self.router(flat)), -1)
        weight, choice = chance.topk(self.active, -1)
        # A single expert keeps its probability as weight (Switch), so that the router gets a gradient; several share 1 (Mixtral).
        if self.active > 1:
            weight = weight / weight.sum(-1, keepdim=True)
        share = torch.zeros_like(chance).scatter_(1, choice, 1.0 / self.active).mean(0)
        self.imbalance = len(self.experts) * (share * chance.mean(0)).sum()
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, rank = (choice == number).nonzero(as_tuple=True)
            if len(token):
                part = expert(flat[token]) * weight[token, rank, None].to(x.dtype)
                result = result.index_add(0, token, part)
        return result.view_as(x)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        norm = nn.LayerNorm if shape.kind == "gpt" else RMSNorm
        self.attention_norm, self.attention = norm(shape.width), Attention(shape)
        self.mlp_norm = norm(shape.width)
        self.mlp = {"gpt": lambda: GeluMLP(shape.width, shape.hidden), "llama": lambda: SwiGLU(shape.width, shape.hidden),
                    "moe": lambda: Experts(shape)}[shape.kind]()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Called with the token before each target and the targets, both [batch, tokens], it returns what training minimises."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        gpt = shape.kind == "gpt"
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width) if gpt else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = (nn.LayerNorm if gpt else RMSNorm)(shape.width)
        self.head = None if gpt else nn.Linear(shape.width, shape.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # GPT-2 makes the layers that end in the residual stream smaller, by the root of their number.
                into_stream = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * shape.layers) if into_stream else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def logits(self, tokens):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight if self.head is None else self.head.weight)

    def forward(self, tokens, targets):
        loss = functional.cross_entropy(wide(self.logits(tokens)).flatten(0, 1), targets.flatten())
        if self.shape.kind == "moe" and self.training:
            loss = loss + self.shape.balance * sum(block.mlp.imbalance for block in self.blocks) / len(self.blocks)
        return loss


class LowRank(nn.Module):
    """A frozen linear layer with W + alpha / rank B A in the place of W. B begins as zero, so that nothing changes at first."""

    def __init__(self, base, rank=8, alpha=16.0):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.A = nn.Linear(base.in_features, rank, bias=False)
        self.B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.B.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.B(self.A(x))


def add_adapters(model, rank=8):
    """Freezes a model, and gives every projection of attention and MLP (and of every expert) an adapter that is trained."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parent in list(model.blocks.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and name != "router" and not isinstance(parent, LowRank):
                setattr(parent, name, LowRank(layer, rank))
    return model

"""Captures of jobs in which not every pass over the model is one of its training: GANs, and tools that trace or transform the model."""

import copy
import warnings

import numpy as np
import pytest

import gradtool

torch = pytest.importorskip("torch")
from fsdp2 import needs_fsdp2  # noqa: E402  pylint: disable=wrong-import-position
from ranks import run_ranks  # noqa: E402  pylint: disable=wrong-import-position

nn, softplus = torch.nn, torch.nn.functional.softplus
STEPS = 3


def generator_and_discriminator():
    torch.manual_seed(3)
    return nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def own_gradients(model, loss):
    """The gradients of this process alone, of a copy of the model whose loss is `loss(copy)`."""
    model = copy.deepcopy(model)
    model.zero_grad()
    loss(model).backward()
    return [p.grad.numpy().copy() for p in model.parameters()]


def whole(module):
    """A copy of the module, or of what FSDP2 shards, that is in no process group."""
    bare = generator_and_discriminator()[0 if isinstance(module, nn.Linear) else 1]
    for into, p in zip(bare.parameters(), module.parameters()):
        into.data.copy_(p.full_tensor() if hasattr(p, "full_tensor") else p)
    return bare


def train_gan(rank, size, folder, wrap, clear):
    """Trains two models as PyTorch's own example does, where the generator's loss leaves gradients in the discriminator."""
    own = {"generator": [], "discriminator": []}
    bare = generator_and_discriminator()
    generator, discriminator = (wrap(module) for module in bare)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, discriminator)]
    captures = [gradtool.Capture(m, f"{folder}/{name}.h5", optimizer=o) for m, name, o in zip((generator, discriminator), own, optimizers)]
    torch.manual_seed(10 + rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            real, noise = torch.randn(5, 4), torch.randn(5, 3)
            still = whole(bare[0])
            both = torch.cat([real, still(noise).detach()])
            own["discriminator"].append(own_gradients(whole(bare[1]), lambda m, both=both: softplus(m(both)).mean()))
            if clear == "before the forward pass":
                optimizers[1].zero_grad(set_to_none=False)
            fake = generator(noise)
            loss = softplus(discriminator(torch.cat([real, fake.detach()]))).mean()
            if clear == "after it":
                optimizers[1].zero_grad(set_to_none=True)
            loss.backward()
            captures[1].step(loss)
            optimizers[1].step()
            judge = whole(bare[1])
            own["generator"].append(own_gradients(still, lambda m, noise=noise, judge=judge: softplus(-judge(m(noise))).mean()))
            optimizers[0].zero_grad()
            softplus(-discriminator(fake)).mean().backward()
            captures[0].step()
            optimizers[0].step()
    for capture in captures:
        capture.close()
    return own, [str(w.message) for w in caught if "cleared by zero_grad" in str(w.message)]


def expect_gan(results, folder):
    for rank, (own, _) in enumerate(results):
        for name, steps in own.items():
            with gradtool.open(f"{folder}/{name}.h5") as run:
                assert len(run.steps["iteration"]) == STEPS
                for step, gradients in enumerate(steps):
                    for tensor, gradient in zip(run, gradients):
                        np.testing.assert_allclose(tensor.gradient[step, rank], gradient, rtol=1e-4, atol=1e-6)
    assert [len(said) for _, said in results] == [1, 0]
    assert results[0][1][0].startswith("iteration 1: gradients that were reduced and cleared")


def gan_of_ddp(rank, size, folder, clear):
    return train_gan(rank, size, folder, nn.parallel.DistributedDataParallel, clear)


@pytest.mark.parametrize("clear", ["before the forward pass", "after it"])
def test_a_gan_under_ddp(tmp_path, clear):
    expect_gan(run_ranks(2, gan_of_ddp, str(tmp_path), clear), tmp_path)


def gan_of_fsdp2(rank, size, folder):
    from torch.distributed.fsdp import fully_shard
    return train_gan(rank, size, folder, fully_shard, "after it")


@needs_fsdp2
def test_a_gan_under_fsdp2(tmp_path):
    expect_gan(run_ranks(2, gan_of_fsdp2, str(tmp_path)), tmp_path)


class TwoHeads(nn.Module):
    """A discriminator with a head that its own loss does not use, and the loss of another model does."""

    def __init__(self):
        super().__init__()
        self.body, self.own, self.other = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, other=False):
        x = self.body(x)
        return self.other(x) if other else self.own(x)


def capture_two_heads(rank, size, folder):
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    model = TwoHeads()
    for module in (model.body, model.own, model.other, model):
        fully_shard(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gradtool.Capture(model, f"{folder}/heads.h5") as capture:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(5, 3) * (rank + 1)).sum().backward()
                capture.step()
                optimizer.step()
                model(torch.ones(5, 3), other=True).sum().backward()


@needs_fsdp2
def test_a_module_of_fsdp2_that_only_another_loss_reaches_is_zero(tmp_path):
    run_ranks(2, capture_two_heads, str(tmp_path))
    with gradtool.open(tmp_path / "heads.h5") as run:
        for tensor in run:
            assert (not tensor.gradient[1].any()) == tensor.name.startswith("other"), tensor.name


ORDERS = ["reduce add", "reduce reduce", "reduce clear keep", "reduce clear keep reduce", "reduce clear reduce reduce", "reduce clear reduce keep"]


def accumulate_oddly(rank, size, folder):
    """Passes around a zero_grad(): returns what was refused, by order."""
    words = {}
    for order in ORDERS:
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with gradtool.Capture(model, f"{folder}/{order.replace(' ', '_')}.h5") as capture:
                    for number, act in enumerate(order.split()):
                        if act == "clear":
                            model.zero_grad(set_to_none=True)
                        elif act == "reduce":
                            model(torch.ones(1, 3) * (number + rank + 1)).sum().backward()
                        else:
                            with model.no_sync():
                                model(torch.ones(1, 3) * (number + rank + 1)).sum().backward()
                    capture.step()
                words[order] = ""
            except (gradtool.Error, RuntimeError) as error:  # DDP of torch 1.13 makes a RuntimeError of what its hook raises
                words[order] = str(error)
    return words


def test_only_what_was_cleared_is_left_out(tmp_path):
    late, twice = "a backward pass under no_sync() came after the one that synchronises", "was reduced twice since the last step()"
    for words in run_ranks(2, accumulate_oddly, str(tmp_path)):
        for order, sentence in {"reduce add": late, "reduce clear keep": late, "reduce reduce": twice, "reduce clear reduce reduce": twice,
                                "reduce clear reduce keep": late}.items():
            assert sentence in words[order], order
        assert words["reduce clear keep reduce"] == ""
    with gradtool.open(tmp_path / "reduce_clear_keep_reduce.h5") as run:
        for rank in range(2):  # passes 2 and 3, of inputs 3 and 4 on rank 0
            np.testing.assert_array_equal(run["weight"].gradient[0, rank], np.full((2, 3), 7.0 + 2 * rank))


def trace(model, inputs):
    torch.jit.trace(model, inputs)  # as TensorBoard's add_graph; it compares two passes


def export(model, inputs):
    exported = torch.export.export(model, (inputs,))
    assert not any("expand" in str(node.target) for node in exported.graph.nodes)


def transform(model, inputs):
    try:
        from torch.func import functional_call, grad
        grad(lambda weights: functional_call(model, weights, (inputs,)).sum())(dict(model.named_parameters()))
    except ImportError:
        functorch = pytest.importorskip("functorch")
        function, weights = functorch.make_functional(model)
        functorch.grad(lambda weights: function(weights, inputs).sum())(weights)


@pytest.mark.parametrize("use", [trace, transform, pytest.param(export, marks=pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "is_exporting"), reason="this torch does not say that it exports"))])
def test_a_pass_that_is_none_of_the_training_leaves_no_trace(use, tmp_path):
    model, inputs = generator_and_discriminator()[1], torch.ones(2, 4)
    with gradtool.Capture(model, tmp_path / "a.h5") as capture:
        use(model, inputs)
        assert capture._began is None and not capture.readiness.running
        model(inputs).sum().backward()
        wanted = [p.grad.clone() for p in model.parameters()]
        capture.step()
    with gradtool.open(tmp_path / "a.h5") as run:
        for tensor, gradient in zip(run, wanted):
            np.testing.assert_array_equal(tensor.gradient[0, 0], gradient)


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this torch has no torch.compile")
def test_passes_of_a_compiled_model_are_of_the_training(tmp_path):
    model, inputs = generator_and_discriminator()[1], torch.ones(2, 4)
    compiled = torch.compile(model, backend="eager")
    with gradtool.Capture(compiled, tmp_path / "a.h5", every=2) as capture:
        for _ in range(5):
            compiled.zero_grad()
            compiled(inputs).sum().backward()
            capture.step()
    with gradtool.open(tmp_path / "a.h5") as run:
        assert np.isfinite(run.readiness["ready"]).all() and len(run.steps["iteration"]) == 3
        np.testing.assert_allclose(run["2.bias"].gradient[2, 0], model[2].bias.grad.numpy())

"""The language models of scripts/language_models, and captures of them: what the script wrote is what autograd computes."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

import gradtool
from conftest import ROOT

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
sys.path.insert(0, str(ROOT / "scripts" / "language_models"))
models = pytest.importorskip("models")
text = pytest.importorskip("text")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A text that every checkout has and that never changes."""
    path = tmp_path_factory.mktemp("text") / "licence.txt"
    path.write_bytes((ROOT / "LICENSE").read_bytes())
    return path


def capture(folder, corpus, *options):
    """Runs the script with two processes; returns the capture and what was printed."""
    out = folder / "run.h5"
    command = [sys.executable, ROOT / "scripts/language_models/capture_language_model.py", "--text", corpus, "--ranks", "2",
               "--size", "tiny", "--vocabulary", "256", "--consecutive", "2", "--out", out, *options]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path), XDG_CACHE_HOME=str(folder))
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return gradtool.open(out), done.stdout


def reference(shape, corpus, batch, rank, seed=1):
    """The first step of one rank by autograd alone: the model, and its tokens and targets."""
    torch.manual_seed(seed)
    model = models.Decoder(shape)
    batches = text.Batches(text.Tokenizer([]).encode(corpus.read_bytes()), shape.context, batch, seed)
    tokens, targets = (torch.from_numpy(part) for part in batches.at(rank, 0))
    model(tokens, targets).backward()
    return model, tokens, targets


def test_parameter_counts_are_the_published_ones():
    gpt2 = models.Shape(layers=12, width=768, heads=12, hidden=3072, context=1024, vocabulary=50257)
    assert models.parameter_count(gpt2) == 124_439_808
    llama = models.Shape("llama", layers=32, width=4096, heads=32, kv_heads=32, hidden=11008, vocabulary=32000)
    assert models.parameter_count(llama) == 6_738_415_616
    mixtral = dataclasses.replace(llama, kind="moe", kv_heads=8, hidden=14336, experts=8)
    assert models.parameter_count(mixtral) == 46_702_792_704


@pytest.mark.parametrize("kind", models.SIZES)
def test_models_have_as_many_parameters_as_the_formula_says(kind):
    for shape in (models.SIZES[kind]["tiny"], models.SIZES[kind]["nano"]):
        assert sum(p.numel() for p in models.Decoder(shape).parameters()) == models.parameter_count(shape)


@pytest.mark.parametrize("kind", models.SIZES)
def test_a_token_does_not_see_later_ones(kind):
    torch.manual_seed(0)
    model = models.Decoder(models.SIZES[kind]["tiny"]).eval()
    tokens = torch.randint(0, 1024, (1, 12))
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 1024
    before, after = model.logits(tokens)[0], model.logits(changed)[0]
    torch.testing.assert_close(before[:7], after[:7])
    assert not torch.allclose(before[7:], after[7:])


def test_rotary_positions_enter_products_by_their_distance_alone():
    torch.manual_seed(0)
    query, key = torch.randn(8).expand(20, 8), torch.randn(8).expand(20, 8)
    products = models.rotary(query) @ models.rotary(key).T
    torch.testing.assert_close(products[5, 2], products[17, 14])
    torch.testing.assert_close(products[3, 3], query[0] @ key[0])
    assert abs(products[5, 2] - products[5, 3]) > 1e-3


def test_experts_add_up_what_each_says_by_its_weight():
    torch.manual_seed(0)
    layer = models.Experts(models.SIZES["moe"]["tiny"])
    x = torch.randn(1, 6, 32)
    expected = torch.zeros(6, 32)
    for i, token in enumerate(x[0]):
        chance = torch.softmax(layer.router.weight @ token, 0)
        best = sorted(range(4), key=lambda e: -chance[e])[:2]
        for e in best:
            expected[i] += chance[e] / sum(chance[b] for b in best) * layer.experts[e](token)
    torch.testing.assert_close(layer(x)[0], expected)


@pytest.mark.parametrize("kind", models.SIZES)
def test_models_learn(kind, corpus):
    torch.manual_seed(0)
    shape = dataclasses.replace(models.SIZES[kind]["tiny"], vocabulary=256)
    model = models.Decoder(shape)
    batches = text.Batches(text.Tokenizer([]).encode(corpus.read_bytes()), shape.context, 8, 1)
    held_out = [torch.from_numpy(part) for part in batches.for_validation()]
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    losses = [model(*held_out).item()]
    for step in range(160):
        optimizer.zero_grad()
        model(*(torch.from_numpy(part) for part in batches.at(0, step))).backward()
        optimizer.step()
    losses.append(model(*held_out).item())
    # Nothing known is ln 256 = 5.5. Below the loss of somebody who knows how frequent each byte is, what follows what is known, too.
    counts = np.bincount(np.asarray(batches.training), minlength=256) + 1
    by_frequency = float(-np.log(counts / counts.sum())[held_out[1].numpy()].mean())
    assert losses[0] > 5.3 and losses[1] < by_frequency - 0.3, (losses, by_frequency)


def test_text_becomes_tokens_and_text_again(corpus, tmp_path):
    data = corpus.read_bytes()[:20000] + "naïve  –\r\n\t42".encode()
    tokenizer = text.tokenizer_of(data, 300, tmp_path)
    tokens = tokenizer.encode(data)
    assert tokenizer.vocabulary == 300 and tokenizer.decode(tokens) == data and len(tokens) < 0.8 * len(data)
    assert text.tokenizer_of(data, 300, tmp_path).merges == tokenizer.merges  # the second time from the folder
    assert len(list(tmp_path.rglob("bpe-*.json"))) == 1
    batches = text.Batches(tokens, 16, 4, 1)
    inputs, targets = batches.at(1, 7)
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    np.testing.assert_array_equal(inputs, text.Batches(tokens, 16, 4, 1).at(1, 7)[0])
    assert not np.array_equal(inputs, batches.at(0, 7)[0]) and not np.array_equal(inputs, batches.at(1, 8)[0])
    with pytest.raises(ValueError, match="needs at least"):
        text.Batches(tokens[:20], 16, 4, 1)


def test_captured_are_the_gradients_of_each_rank_and_adapters_alone_with_lora(corpus, tmp_path, gradtool_program):
    (tmp_path / "whole").mkdir()
    run, printed = capture(tmp_path / "whole", corpus, "--model", "gpt", "--steps", "8", "--batch", "4", "--checkpoint",
                           tmp_path / "model.pt")
    before, after = (float(part) for part in printed.partition("loss on held-out text: ")[2].split()[:3:2])
    assert after < before - 0.05
    with run:
        assert run.steps["iteration"].tolist() == [0, 1, 4, 5, 6, 7] and run.workers == 2
        kinds = {t.name: t.kind for t in run}
        assert kinds["embedding.weight"] == kinds["positions.weight"] == "embedding" and kinds["norm.weight"] == "norm"
        assert kinds["blocks.0.attention.query.weight"] == "linear" and kinds["blocks.1.mlp.up.bias"] == "bias"
        shape = dataclasses.replace(models.SIZES["gpt"]["tiny"], vocabulary=256)
        for rank in range(2):
            model, tokens, targets = reference(shape, corpus, 4, rank)
            for tensor, parameter in zip(run, model.parameters()):
                np.testing.assert_allclose(tensor.gradient[0, rank], parameter.grad, rtol=1e-4, atol=1e-6)
        # Not by autograd either: the slope of the loss, by central differences in float64.
        model, captured = model.double(), dict(zip(kinds, (t.gradient[0, 1].ravel() for t in run)))
        for name in ("blocks.0.attention.key.weight", "blocks.1.mlp.down.weight", "embedding.weight"):
            weight = dict(model.named_parameters())[name].data.view(-1)
            at, losses = int(np.abs(captured[name]).argmax()), []
            for move in (1e-4, -2e-4):
                weight[at] += move
                losses.append(model(tokens, targets).item())
            np.testing.assert_allclose((losses[0] - losses[1]) / 2e-4, captured[name][at], rtol=1e-2)
    assert subprocess.run([gradtool_program, "validate", "--strict", tmp_path / "whole" / "run.h5"]).returncode == 0

    run, _ = capture(tmp_path, corpus, "--from-checkpoint", tmp_path / "model.pt", "--lora", "4", "--steps", "2", "--dtype",
                     "bf16", "--capture", "early", "--batch", "2")
    with run:
        parts = [f"blocks.{block}.{layer}.{part}.weight" for block in range(2) for layer in
                 ("attention.query", "attention.key", "attention.value", "attention.output", "mlp.up", "mlp.down")
                 for part in "AB"]
        assert [t.name for t in run] == parts and {t.kind for t in run} == {"linear"}
        for tensor in run:
            first, second = np.array(tensor.gradient[0]), np.array(tensor.gradient[1])
            # B begins as zero, so no gradient reaches A before the first update.
            assert first.any() == (tensor.name.endswith("B.weight")) and second.any(), tensor.name


def test_experts_without_tokens_are_captured_as_zeros(corpus, tmp_path):
    run, _ = capture(tmp_path, corpus, "--model", "moe", "--steps", "2", "--batch", "1", "--context", "2", "--active", "1",
                     "--capture", "early")
    shape = dataclasses.replace(models.SIZES["moe"]["tiny"], vocabulary=256, context=2, active=1)
    with run:
        unused = 0
        for rank in range(2):
            model, _, _ = reference(shape, corpus, 1, rank)
            for tensor, (name, parameter) in zip(run, model.named_parameters()):
                values = tensor.gradient[0, rank]
                if parameter.grad is None:
                    unused += 1
                    assert ".experts." in name and not np.any(values)
                else:
                    np.testing.assert_allclose(values, parameter.grad, rtol=1e-4, atol=1e-6)
        # Two tokens reach two experts of four at most, on each rank and layer; an expert has three tensors.
        assert unused >= 2 * 2 * 2 * 3


def test_the_sample_capture_is_that_of_a_language_model(gradtool_program):
    path = ROOT / "datasets" / "llama-shakespeare.h5"
    assert subprocess.run([gradtool_program, "validate", "--strict", path]).returncode == 0
    with gradtool.open(path) as run:
        shape = dataclasses.replace(models.SIZES["llama"]["tiny"], vocabulary=512)
        expected = [(name, tuple(parameter.shape)) for name, parameter in models.Decoder(shape).named_parameters()]
        assert [(t.name, tuple(t.shape)) for t in run] == expected
        kinds = {t.name: t.kind for t in run}
        assert kinds["embedding.weight"] == "embedding" and kinds["head.weight"] == "linear"
        assert {kind for name, kind in kinds.items() if "norm" in name} == {"norm"}
        assert {kind for name, kind in kinds.items() if ".mlp." in name or ".attention." in name} == {"linear"}
        # A row of the embedding has a gradient only on workers whose batch has its token: 128 tokens of 512 at most.
        rows = np.array(next(iter(run)).gradient[:]).reshape(6, 4, 512, 32).any(-1).sum(-1)
        assert rows.min() > 0 and rows.max() <= 128
        loss = run.steps["loss"].mean(1)
        assert loss[-1] < loss[0] - 1


def test_the_report_says_which_codecs_survive(tmp_path, gradtool_program, monkeypatch):
    report = pytest.importorskip("report")
    monkeypatch.setattr(report, "CODECS", ["bf16", "topk:ratio=0.01", "gradiveq:lt=4"])
    out = tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("# Page\n<!-- errors -->\nold\n<!-- end -->\nbehind\n")
    sample = ROOT / "datasets" / "llama-shakespeare.h5"
    options = [f"llama={sample}", "--gradtool", str(gradtool_program), "--out", str(out), "--work", str(tmp_path), "--timeout", "0.1"]
    report.main(options)
    errors = {row["codec"]: row for row in report.rows_of(out / "errors.csv")}
    assert errors["bf16"]["survives"] == "1" and errors["topk:ratio=0.01"]["survives"] == "0"
    assert errors["gradiveq:lt=4"]["status"] == "not at work" and errors["gradiveq:lt=4"]["survives"] == "0"
    topk = errors["topk:ratio=0.01"]
    assert topk["judged_nmse"] == topk["cumulative_nmse"] != topk["nmse"] and topk["nmse_first_phase"] != topk["nmse_last_phase"]
    tensors = {row["tensor"]: row for row in report.rows_of(out / "tensors.csv")}
    with gradtool.open(sample) as run:
        embedding = np.array(next(iter(run)).gradient[:]).reshape(6, 4, 512, 32)
    assert float(tensors["embedding.weight"]["zero_rows"]) == pytest.approx((embedding == 0).all(-1).mean(), rel=1e-3)
    assert sum(float(row["energy"]) for row in tensors.values()) == pytest.approx(1, abs=0.05)  # norms are left out
    page = (out / "README.md").read_text()
    assert "| codec | llama |" in page and "old" not in page and page.endswith("<!-- end -->\nbehind\n")

    # The second time nothing is measured again.
    before = (tmp_path / "llama.csv").stat().st_mtime_ns
    report.main(options)
    assert (tmp_path / "llama.csv").stat().st_mtime_ns == before


@pytest.mark.parametrize("options, sentence", [
    (["--model", "gpt", "--capture", "late,never"], "valid are early, middle, late"),
    (["--model", "gpt", "--from-checkpoint", "x.pt"], "either --model or --from-checkpoint"),
    (["--model", "gpt", "--part", "1:0"], "BEGIN < END"),
])
def test_options_that_make_no_sense_are_refused(options, sentence, corpus, tmp_path, capsys):
    script = pytest.importorskip("capture_language_model")
    with pytest.raises(SystemExit) as refusal:
        script.parse(["--text", str(corpus), "--out", str(tmp_path / "run.h5"), *options])
    assert refusal.value.code == 2 and sentence in capsys.readouterr().err


def test_what_is_no_checkpoint_is_refused(corpus, tmp_path, capsys):
    script = pytest.importorskip("capture_language_model")
    with pytest.raises(SystemExit) as refusal:
        script.main(["--text", str(corpus), "--out", str(tmp_path / "run.h5"), "--from-checkpoint", str(corpus)])
    assert refusal.value.code == 3 and "is no checkpoint that --checkpoint wrote" in capsys.readouterr().err

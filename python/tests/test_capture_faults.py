"""What a capture would get wrong is refused, or warned of, in a sentence that names it."""

import pytest

import gradtool

torch = pytest.importorskip("torch")
nn = torch.nn


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))


def backward(model, rank=0):
    model(torch.ones(2, 6) + rank).square().sum().backward()


# ---- files that are in the way, and that differ ----


def test_a_file_in_the_way_of_a_restarted_job(tmp_path, monkeypatch):
    (tmp_path / "run.h5").write_text("mine")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    with pytest.raises(gradtool.UsageError, match=r"exists; give another path or replace=True \(.*2 times.*TORCHELASTIC_RESTART_COUNT"):
        gradtool.Capture(two_layers(), tmp_path / "run.h5")


def test_a_merge_says_which_ranks_have_which_steps(tmp_path):
    for rank, iterations in enumerate([range(6), range(6), range(4, 9), range(20, 22)]):
        model = two_layers()
        with gradtool.Capture(model, tmp_path / f"{rank}.h5", iterations=iterations) as capture:
            for _ in range(30):
                backward(model)
                capture.step()
    files = [tmp_path / f"{rank}.h5" for rank in range(4)]
    with pytest.warns(UserWarning, match="0.h5 and 1 more: 6 steps of iterations 0 to 5; 2.h5: 5 steps of iterations 4 to 8"):
        gradtool.merge(files[:3], tmp_path / "run.h5")
    with pytest.raises(gradtool.DataError, match="in common: .*; 3.h5: 2 steps of iterations 20 to 21"):
        gradtool.merge(files, tmp_path / "other.h5")

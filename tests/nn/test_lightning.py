"""ULMonitor writes the health of every UL layer into the log of a Lightning trainer."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ullayers as ul
from tests.films import read_table
from ullayers.errors import MissingPackageError

NAMES = ("J", "rank", "collapsed", "dead_units", "skipped", "singular")


@pytest.fixture(scope="module")
def pl() -> Any:
    """Lightning, imported by the worker that needs it: it takes seconds."""
    return pytest.importorskip("lightning.pytorch", reason="needs the package lightning")


def slow_module(pl: Any, *layers: nn.Module) -> Any:
    class Slow(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*layers)

        def training_step(self, batch: tuple[Tensor]) -> Tensor:
            y: Tensor = self.net(batch[0])
            return 0 * y.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Slow()


def fit(pl: Any, module: Any, folder: Path, **options: object) -> list[dict[str, str]]:
    """Train for six batches with a monitor, and return the log."""
    from ullayers.nn.lightning import ULMonitor

    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[ULMonitor()],
        logger=pl.loggers.CSVLogger(folder, name="log", version=""),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    clips = torch.randn(6, 40, 5, generator=torch.Generator().manual_seed(0))
    trainer.fit(module, DataLoader(TensorDataset(clips), batch_size=None))
    return read_table(folder / "log" / "metrics.csv")


def test_every_layer_is_logged_when_the_trainer_logs(pl: Any, tmp_path: Path) -> None:
    module = slow_module(pl, nn.Linear(5, 3), ul.UL1d(3), nn.Linear(3, 2), ul.UL1d(2))
    rows = fit(pl, module, tmp_path, log_every_n_steps=2)
    assert [row["step"] for row in rows] == ["1", "3", "5"]
    assert set(rows[0]) >= {f"ul/net.{layer}/{name}" for layer in (1, 3) for name in NAMES}
    for layer in (1, 3):
        health = module.net[layer].health()
        assert float(rows[-1][f"ul/net.{layer}/J"]) == pytest.approx(health.objective, rel=1e-4)
        assert float(rows[-1][f"ul/net.{layer}/rank"]) == pytest.approx(health.rank, rel=1e-4)


def test_accumulated_gradients_are_logged_too(pl: Any, tmp_path: Path) -> None:
    module = slow_module(pl, nn.Linear(5, 2), ul.UL1d(2))
    rows = fit(pl, module, tmp_path, log_every_n_steps=1, accumulate_grad_batches=2)
    assert len({row["step"] for row in rows}) == 3
    assert all(row["ul/net.1/J"] for row in rows)


def test_a_collapsed_layer_shows(pl: Any, tmp_path: Path) -> None:
    torch.manual_seed(12)  # rounding errors make the copy a direction of its own, in float32
    same = nn.Linear(5, 2)
    with torch.no_grad():
        same.weight[1] = same.weight[0]
    module = slow_module(pl, same, ul.UL1d(2))
    [row] = fit(pl, module, tmp_path, log_every_n_steps=1, max_steps=1)
    assert float(row["ul/net.1/collapsed"]) == 1
    assert float(row["ul/net.1/rank"]) <= 1


def test_a_module_without_ul_layers_gives_a_warning(pl: Any) -> None:
    from ullayers.nn.lightning import ULMonitor

    module = slow_module(pl, nn.Linear(5, 2))
    with pytest.warns(UserWarning, match="no UL layer"):
        ULMonitor().on_fit_start(pl.Trainer(accelerator="cpu", logger=False), module)


@pytest.mark.usefixtures("pl")
def test_the_example_runs() -> None:
    module = importlib.import_module("ullayers.nn.lightning")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "ullayers.nn.lightning", raising=False)
    with pytest.raises(MissingPackageError, match=r"pip install 'ullayers\[lightning\]'"):
        importlib.import_module("ullayers.nn.lightning")

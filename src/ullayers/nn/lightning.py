"""`ULMonitor`: a Lightning callback that logs the health of UL layers."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ullayers.errors import MissingPackageError
from ullayers.nn.calls import ULBase

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        try:
            from pytorch_lightning import Callback  # the same package under its older name
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "ULMonitor needs the package lightning: pip install 'ullayers[lightning]'"
            ) from error

NO_LAYERS = "ULMonitor found no UL layer in this module, so it logs nothing"


class ULMonitor(Callback):
    """Log J, effective rank and problems of every UL layer while a `Trainer` fits a module.

    Every `log_every_n_steps` steps of the trainer, the callback logs for each UL layer, by the name
    that the layer has in the module:

    - `ul/NAME/J`: objective of the layer; lower is better.
    - `ul/NAME/rank`: effective rank of its input. A low rank means that the outputs have collapsed.
    - `ul/NAME/collapsed`: 1 if features that vary are linearly dependent.
    - `ul/NAME/dead_units`, `skipped`, `singular`: counts, as in `Health`.

    Other callbacks can use these values: `ModelCheckpoint(monitor="ul/NAME/J")`.

    Example:
        >>> import lightning.pytorch as pl, torch, ullayers as ul
        >>> class Slow(pl.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Sequential(torch.nn.Linear(6, 2), ul.UL1d(2))
        ...     def training_step(self, frames):
        ...         self.net(frames)
        ...         return ul.loss(self.net)
        ...     def configure_optimizers(self):
        ...         return torch.optim.Adam(self.parameters(), lr=0.01)
        >>> trainer = pl.Trainer(
        ...     accelerator="cpu", max_steps=2, callbacks=[ULMonitor()], log_every_n_steps=1,
        ...     logger=False, enable_checkpointing=False, enable_progress_bar=False,
        ...     enable_model_summary=False,
        ... )
        >>> clips = torch.utils.data.DataLoader(torch.randn(4, 40, 6), batch_size=None)
        >>> trainer.fit(Slow(), clips)
        >>> sorted(name for name in trainer.callback_metrics)[:2]
        ['ul/net.1/J', 'ul/net.1/collapsed']
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if there is nothing to log."""
        if not _layers(pl_module):
            warnings.warn(NO_LAYERS, stacklevel=2)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *batch: Any, **more: Any
    ) -> None:
        """Log all layers if the trainer writes its log at this step."""
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not every or trainer.global_step % every:
            return
        for name, layer in _layers(pl_module).items():
            health = layer.health()
            values = {
                "J": health.objective,
                "rank": health.rank,
                "collapsed": float(health.collapsed),
                "dead_units": float(health.dead_units),
                "skipped": float(health.skipped),
                "singular": float(health.singular),
            }
            pl_module.log_dict({f"ul/{name}/{key}": value for key, value in values.items()})


def _layers(module: LightningModule) -> dict[str, ULBase]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, ULBase)}

"""All that changes while training, to a checkpoint and back."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.kernels import tuning
from torchcaps.training.optim import load_optimiser_tensors, optimiser_tensors
from torchcaps.training.runs import Checkpoint, Rows


@dataclass
class State:
    """Weights, optimisers, the place in the run, and what was measured so far."""

    step: int
    seconds: float
    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    average: nn.Module | None
    rows: Rows
    frames: list[Tensor]
    sums: dict[str, float] = field(default_factory=dict)
    """Of what was measured since the last row, over `summed` steps."""
    summed: int = 0

    @property
    def best(self) -> nn.Module:
        """The weights that count: the averaged ones where there is an average."""
        return self.model if self.average is None else self.average

    def save(self, checkpoint: Checkpoint) -> None:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimiser.{name}": value for name, value in optimiser_tensors(self.optimisers).items()}
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.state_dict().items()}
        if self.frames:
            tensors["frames"] = torch.stack(self.frames)
        position = {"step": self.step, "seconds": self.seconds, "rows": self.rows}
        position |= {"sums": self.sums, "summed": self.summed}
        checkpoint.save(tensors, {**position, "kernels": tuning.choices()})

    def load(self, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        self.step, self.seconds, self.rows = saved["step"], saved["seconds"], saved["rows"]
        self.sums, self.summed = saved.get("sums", {}), saved.get("summed", 0)
        tuning.use(saved["kernels"])
        self.model.load_state_dict(part("model."))
        load_optimiser_tensors(self.optimisers, part("optimiser."))
        if self.average is not None:
            self.average.load_state_dict(part("average."))
        self.frames = list(tensors["frames"]) if "frames" in tensors else []

"""Run under torchrun by test_loop.py: gradients of the first step and the loss of fifty, for the global batch.

One file for each model that is named after the folder: starting processes takes longer than what they compute.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

from torchcaps.data import ImageSet, ImageStream
from torchcaps.models.registry import create_model
from torchcaps.training.loop import train_step
from torchcaps.training.optim import make_optimisers

folder, names = Path(sys.argv[1]), sys.argv[2:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
for name in names:
    torch.manual_seed(0)
    model = create_model(name, image=(1, 28, 28), channels=16, primary_types=2, decoder=(16,))
    noise = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (256, 1, 28, 28), generator=noise, dtype=torch.uint8)
    labels = torch.randint(0, 10, (256,), generator=noise)
    stream = ImageStream(ImageSet("noise", pixels, labels, tuple("0123456789")), seed=0)
    wrapped = DistributedDataParallel(model, broadcast_buffers=False) if world > 1 else model
    optimisers = make_optimisers(model, "adam", 1e-4)
    gradients: dict[str, torch.Tensor] = {}
    curve = []
    for step in range(50):
        losses, _ = train_step(wrapped, stream.batch(step, 16).part(rank, world), optimisers)
        if step == 0:
            gradients = {key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None}
        total = losses["total"] / world
        dist.all_reduce(total)
        curve.append(total)
    if rank == 0:
        save_file({**gradients, "curve": torch.stack(curve)}, folder / f"{name}.safetensors")
dist.destroy_process_group()
# Everything is written. Once, PyTorch aborted while it took itself down after this ("terminate called without an active
# exception"), which says nothing about gradients.
os._exit(0)

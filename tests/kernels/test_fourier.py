"""The loops in C and the products of their plain twin compute the same factors and the same pixels."""

import pytest
import torch

from torchcaps.kernels import native, transforms
from torchcaps.kernels.dft import correlation

# Batch, channels, rows, columns, stride, grid: channels that fill no panel, one or more; too few or too many pixels.
CASES = [(2, 3, 7, 5, 1, (7, 5)), (3, 40, 9, 10, 2, (5, 5)), (2, 33, 11, 8, 3, (3, 2)), (1, 64, 20, 20, 2, (10, 10))]


@pytest.mark.skipif(native.library("dft") is None, reason="there are no loops in C here")
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "pixel-major"])
@pytest.mark.parametrize("case", CASES)
def test_loops_are_their_plain_twin(case: tuple, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    b, c, h, w, stride, grid = case
    maps = correlation(grid, (1, 1), torch.float32, torch.device("cpu"))
    x = torch.randn(b, c, h, w, generator=torch.Generator().manual_seed(0))
    x = {
        "contiguous": x,
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "pixel-major": x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
    }[layout]
    for transform in (maps.inputs, maps.outputs):
        found = []
        for served in (True, False):
            monkeypatch.setattr(transforms, "_served", lambda _, served=served: served)
            factors = transforms.to_factors(transform, x, stride, grid).clone()
            found.append((factors, transforms.from_factors(transform, factors, x.shape, stride, grid)))
        for ours, plain in zip(*found, strict=True):
            assert (ours - plain).abs().max() <= 1e-5 * plain.abs().max()

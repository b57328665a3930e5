"""The convolution of a compiled graph: one operator for all twins, as PyTorch wants operators."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from torchcaps.kernels import convolution, tuning

SHAPES = {
    "tiles": (3, 8, 12, 6, 3, 1, 1),
    "tiles of stride 2": (2, 4, 9, 4, 4, 2, 1),
    "large kernel": (2, 3, 13, 4, 7, 1, 0),
    "large kernel, stride and padding": (2, 3, 14, 4, 9, 2, 2),
    "one image, one channel": (1, 1, 9, 5, 5, 1, 2),
}
"""Images, channels, side, outputs, kernel, stride, padding."""


def make(shape: str) -> tuple[nn.Conv2d, torch.Tensor, torch.Tensor]:
    images, channels, side, outputs, kernel, stride, padding = SHAPES[shape]
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, outputs, kernel, stride, padding, bias=False)
    x = torch.randn(images, channels, side, side, requires_grad=True)
    return conv, x, torch.randn_like(conv(x))


@pytest.mark.parametrize("mode", tuning.MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_registered_as_torch_wants_it(shape: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, mode)
    conv, x, grad = make(shape)
    place = (conv.stride[0], conv.padding[0])
    torch.library.opcheck(convolution.compiled, (x, conv.weight, *place, True))
    values = (grad, x.detach(), conv.weight.detach(), *place)
    for wanted in ((True, True), (True, False), (False, True)):
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(convolution.compiled_backward, (*values, *wanted), test_utils=checks)


@pytest.mark.parametrize("mode", tuning.MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_computes_what_conv2d_does(shape: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, mode)
    conv, x, grad = make(shape)
    for layout in (torch.contiguous_format, torch.channels_last):
        for training in (True, False):
            given = x.detach().contiguous(memory_format=layout).requires_grad_()
            found = convolution.compiled(given, conv.weight, conv.stride[0], conv.padding[0], training)
            torch.testing.assert_close(found, conv(x), rtol=1e-4, atol=1e-4)
            gradients = torch.autograd.grad(found, (given, conv.weight), grad)
            expected = torch.autograd.grad(conv(x), (x, conv.weight), grad)
            for ours, plain in zip(gradients, expected, strict=True):
                assert (ours - plain).norm() <= 1e-5 * plain.norm()


def test_asks_for_no_gradient_that_nobody_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, "fast")
    conv, x, _ = make("tiles")
    place = (conv.stride[0], conv.padding[0])
    convolution.compiled(x.detach(), conv.weight, *place, True).sum().backward()
    assert conv.weight.grad is not None
    convolution.compiled(x, conv.weight.detach(), *place, True).sum().backward()
    assert x.grad is not None


COMPILED = """
import os, sys
import torch
from torchcaps.nn import PrimaryCaps
os.environ["TORCHCAPS_KERNELS"] = sys.argv[1]

layer = PrimaryCaps(6, types=2, dim=4, kernel=5, stride=2)
graphs = []
compiled = torch.compile(layer, backend=lambda graph, _: graphs.append(str(graph.graph)) or graph, fullgraph=True)
for images in (2, 3, 5):  # from the second on, one graph for all numbers
    u = torch.randn(images, 6, 13, 13)
    torch.testing.assert_close(compiled(u).poses, layer(u).poses)
    with torch.no_grad():
        torch.testing.assert_close(compiled(u).poses, layer(u).poses)
assert len(graphs) <= 4, len(graphs)
assert ("torchcaps.convolution" in graphs[0]) == (sys.argv[1] != "plain"), graphs[0]
"""


@pytest.mark.parametrize("mode", ["auto", "plain"])
def test_compiles_without_a_graph_break(mode: str) -> None:
    """In a process of its own: the type checks of the tests cannot be compiled."""
    subprocess.run([sys.executable, "-c", COMPILED, mode], check=True)

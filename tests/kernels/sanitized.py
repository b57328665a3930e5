"""Run by test_sanitizers.py with the sanitizers of the compiler loaded: every loop in C, forward and backward.

Shapes are small and odd: one of everything, a vector's width more or less one, and numbers that are not finite.
"""

import torch
from torch import nn

from torchcaps.core.types import CapsuleMap, Capsules
from torchcaps.kernels import compiler, fused_norm, native
from torchcaps.kernels.columns import columns_conv2d
from torchcaps.kernels.phase_conv import phase_conv2d
from torchcaps.kernels.products import native_bmm
from torchcaps.kernels.remembered import checksum
from torchcaps.kernels.winograd import winograd_conv2d
from torchcaps.nn import ClassCaps, ConvCaps, DenseCaps
from torchcaps.nn.norm import BatchNorm

# Quick to compile; the sanitizers themselves are in `CC`.
compiler.FLAGS = ("-O0", "-g", "-fPIC")
compiler.SECONDS = 600
ran = 0


def both_ways(layer: nn.Module, *inputs: torch.Tensor) -> None:
    global ran
    kind = CapsuleMap if inputs[0].ndim == 5 else Capsules
    for scale in (1.0, 1e4, float("nan")):
        leaves = [(x * scale).requires_grad_() for x in inputs]
        output = layer(kind(*leaves))
        (output[0].sum() + output[1].sum()).backward()
        with torch.no_grad():
            layer(kind(*inputs))
        ran += 1


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    for children, parents, dim, batch in ((1, 1, 1, 1), (5, 7, 3, 2), (9, 8, 16, 3), (33, 17, 5, 2)):
        poses, activations = torch.randn(batch, children, 4), torch.rand(batch, children)
        for routing, options in (("em", {}), ("dynamic", {"learn_priors": True, "bias": True, "leaky": True})):
            both_ways(DenseCaps(children, 4, parents, dim, routing, **options), poses, activations)
        both_ways(DenseCaps(children, 4, parents, dim, "dynamic", iterations=1), poses, activations)
    for types, height, width, parents, kernel, stride, local in ((3, 5, 4, 9, 3, 1, False), (1, 3, 3, 1, 2, 1, True)):
        grid = torch.randn(2, types, height, width, 16), torch.rand(2, types, height, width)
        layer = ConvCaps(types, 16, parents, 16, kernel, stride, "em", matrix=True, local=local)
        both_ways(layer, *grid)
        both_ways(ClassCaps((types, height, width), 16, 5, 16, matrix=True), *grid)
    for channels, size, outputs, kernel, stride, padding in (
        (1, 3, 1, 3, 1, 0),
        (5, 7, 17, 3, 1, 1),
        (3, 9, 7, 4, 2, 0),
    ):
        x, weight = torch.randn(2, channels, size, size + 1), torch.randn(outputs, channels, kernel, kernel)
        bias = torch.randn(outputs)
        for image in (x, x.contiguous(memory_format=torch.channels_last)):
            with torch.no_grad():
                columns_conv2d(image, weight, bias, stride, padding)
            leaves = image.clone().requires_grad_(), weight.clone().requires_grad_()
            winograd_conv2d(*leaves, bias, stride, padding).sum().backward()
            leaves = image.clone().requires_grad_(), weight.clone().requires_grad_()
            phase_conv2d(*leaves, bias, stride, padding).sum().backward()
    for pool in (False, True):
        norm, x = BatchNorm(3), torch.randn(2, 3, 5, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
        assert fused_norm.supports(norm, x)
        norm.with_relu(x, pool).sum().backward()
    for rows, columns, depth in ((1, 1, 1), (9, 47, 7), (8, 48, 8), (17, 97, 261)):
        for a in (torch.randn(2, rows, depth), torch.randn(2, depth, rows).mT):
            for b in (torch.randn(2, depth, columns), torch.randn(2, columns, depth).mT):
                native_bmm(a, b, torch.empty(2, rows, columns))
    for count in (1, 31, 33, 40_000):
        checksum(torch.randn(count, 1, 1, 1))
    missing = [name for name in compiler.sources() if native.state(name).origin not in ("compiled", "cache")]
    assert not missing, missing
    print(f"{ran} layers, no fault")


if __name__ == "__main__":
    main()

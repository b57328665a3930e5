"""Properties of the squashing function and of capsule layers."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchcaps.core.types import CapsuleMap, Capsules, RoutingOutput, capsules_of
from torchcaps.testing import modules
from torchcaps.testing.core import must_run, require, require_close, require_finite, seeded
from torchcaps.testing.modules import Run


def check_squash(squash: Callable[[Tensor], Tensor]) -> None:
    """Eq. 1 of Sabour et al. 2017: over the last axis, length `n² / (1 + n²)`, same direction, finite slope at zero."""
    with seeded(0):
        s = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    with must_run("squash"):
        v = squash(s)
    require(v.shape == s.shape, f"squash changes the shape {list(s.shape)} to {list(v.shape)}")
    n = s.norm(dim=-1)
    require_close(v.norm(dim=-1), n**2 / (1 + n**2), "a squashed vector of length n is not n² / (1 + n²) long", 1e-6)
    require_close(v / v.norm(dim=-1, keepdim=True), s / n.unsqueeze(-1), "squash turns a vector", 1e-6)
    with must_run("squash of a single vector"):
        require_close(
            squash(s[0, 0, 0]), v[0, 0, 0], "a vector on its own is squashed otherwise than among others", 1e-6
        )
    for dtype in (torch.float32, torch.float64):
        for name, value in {"zero": 0.0, "tiny": 1e-20, "huge": 1e9}.items():
            x = torch.full((2, 4), value, dtype=dtype, requires_grad=True)
            with must_run(f"squash of a {name} vector in {dtype}"):
                y = squash(x)
                (gradient,) = torch.autograd.grad(y.sum(), x)
            require(y.dtype == dtype, f"squash turns {dtype} into {y.dtype}")
            require_finite(y, f"squash of a {name} vector in {dtype}")
            require_finite(gradient, f"the gradient of squash at a {name} vector in {dtype}")
            require(y.norm(dim=-1).max().item() <= 1 + 1e-6, f"squash of a {name} vector is longer than 1")
    with must_run("the backward pass of squash does not match finite differences"):
        torch.autograd.gradcheck(squash, (s[0].requires_grad_(),))


def check_primary_caps(
    layer: Callable[[Tensor], Capsules | CapsuleMap | Tensor],
    *,
    channels: int,
    types: int,
    dim: int,
    kernel: int,
    stride: int = 1,
) -> None:
    """A capsule is `dim` channels at ONE position: all its numbers depend on one window of the feature map.

    Tested by gradients: the gradient of a capsule with respect to the features is zero outside its receptive field. A
    capsule made of neighbouring positions depends on more than one window.
    """
    if isinstance(layer, nn.Module):
        layer = copy.deepcopy(layer).eval()
    side = 4
    size = kernel + (side - 1) * stride
    with seeded(0):
        features = torch.randn(1, channels, size, size, requires_grad=True)
    with must_run("primary capsules"):
        result = layer(features)
    poses = capsules_of(result).poses
    expected = [1, types * side * side, dim]
    require(list(poses.shape) == expected, f"primary capsules are {list(poses.shape)} instead of {expected}")
    windows: dict[tuple[int, int], int] = {}
    for capsule, pose in enumerate(poses[0]):
        (gradient,) = torch.autograd.grad(pose.square().sum(), features, retain_graph=True)
        # Not exactly zero: a convolution in the Fourier domain has rounding errors.
        reach = gradient[0].abs().sum(0)
        seen = (reach > 1e-4 * reach.max()).nonzero()
        require(len(seen) > 0, f"capsule {capsule} sees nothing")
        top, left = (int(start) for start in seen.amin(0))
        height, width = (int(end) + 1 for end in seen.amax(0) - seen.amin(0))
        require(
            max(height, width) <= kernel,
            f"capsule {capsule} sees a window of {height}x{width} through a {kernel}x{kernel} kernel: "
            "its numbers come from several positions",
        )
        windows[top, left] = windows.get((top, left), 0) + 1
    require(
        len(windows) == side * side and set(windows.values()) == {types},
        f"{len(windows)} positions carry {sorted(set(windows.values()))} capsules each "
        f"instead of {side * side} carrying {types}",
    )
    lengths = poses.norm(dim=-1)
    require(lengths.max().item() <= 1 + 1e-6, f"a primary capsule is {lengths.max():.3g} long: it was not squashed")


def check_layer(
    layer: nn.Module, *, children: int, child_dim: int, parents: int, dim: int, deterministic: bool = True
) -> None:
    """A layer from capsules to capsules: shapes, independent images, no state, finite gradients at zero, any device."""

    def run_with(layer: nn.Module) -> Run:
        def run(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
            output: RoutingOutput = layer(Capsules(poses, activations))
            return output.poses, output.activations

        return run

    layer = copy.deepcopy(layer).double().eval()
    run = run_with(layer)
    with seeded(0):
        inputs = (
            torch.randn(3, children, child_dim, dtype=torch.float64) * 0.3,
            torch.rand(3, children, dtype=torch.float64) * 0.8 + 0.1,
        )
    with must_run("layer"):
        poses, activations = run(*inputs)
    require(list(poses.shape) == [3, parents, dim], f"poses are {list(poses.shape)} instead of {[3, parents, dim]}")
    require(
        list(activations.shape) == [3, parents], f"activations are {list(activations.shape)} instead of {[3, parents]}"
    )
    if deterministic:
        modules.require_independent_images("layer", run, inputs)
        modules.require_repeatable("layer", run, inputs)
    modules.require_stateless("layer", layer, run, inputs)
    nothing = torch.zeros_like(inputs[0])
    modules.require_finite_gradients("layer of all-zero capsules", layer, run, (nothing, inputs[1]))
    modules.require_any_device("layer", layer, run_with, inputs)

"""Properties that any module can have."""

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from torchcaps.testing.core import fingerprint, must_run, require, require_close, require_finite, same_bytes

# Takes the input tensors of a module, returns output tensors whose first axis is the batch.
Run = Callable[..., Iterable[Tensor]]


def module_state(module: nn.Module, *, buffers: bool = True) -> dict[str, object]:
    """Everything that a forward pass could write to: parameters, buffers and attributes of all submodules."""
    state: dict[str, object] = {name: fingerprint(tensor) for name, tensor in module.named_parameters()}
    if buffers:
        state |= {name: fingerprint(tensor) for name, tensor in module.named_buffers()}
    for path, part in module.named_modules():
        registered = ("_parameters", "_buffers", "_modules")
        plain = {name: value for name, value in vars(part).items() if name not in registered}
        state |= {f"{path}.{name}".lstrip("."): fingerprint(value) for name, value in plain.items()}
    return state


def require_stateless(
    what: str, module: nn.Module, run: Run, inputs: tuple[Tensor, ...], *, buffers: bool = True
) -> None:
    """A forward pass changes neither the module nor its inputs."""
    before, given = module_state(module, buffers=buffers), [fingerprint(tensor) for tensor in inputs]
    with must_run(what):
        run(*inputs)
    after = module_state(module, buffers=buffers)
    written = [name for name in before | after if before.get(name) != after.get(name)]
    mode = "train" if module.training else "eval"
    require(not written, f"{what} writes state in forward ({mode} mode): {', '.join(written)} changed")
    require(given == [fingerprint(tensor) for tensor in inputs], f"{what} changes its input in place")


def require_repeatable(what: str, run: Run, inputs: tuple[Tensor, ...]) -> None:
    """The same call gives the same bytes."""
    with must_run(what):
        pairs = list(zip(run(*inputs), run(*inputs), strict=True))
    for first, second in pairs:
        require(same_bytes(first, second), f"{what} does not give the same bytes when called twice")


def require_independent_images(what: str, run: Run, inputs: tuple[Tensor, ...], tolerance: float = 1e-9) -> None:
    """The output for an image does not depend on the other images of its batch."""
    with must_run(what):
        together = list(run(*inputs))
    for row in range(len(inputs[0])):
        with must_run(f"{what}, given a batch of one"):
            alone = list(run(*(tensor[row : row + 1] for tensor in inputs)))
        for one, all_rows in zip(alone, together, strict=True):
            require_close(
                one, all_rows[row : row + 1], f"{what}: a batch of one is not row {row} of a batch", tolerance
            )
    strangers = tuple(torch.cat([tensor[:1], (1 - tensor[1:]).flip(0)]) for tensor in inputs)
    with must_run(what):
        beside_strangers = list(run(*strangers))
    for one, all_rows in zip(beside_strangers, together, strict=True):
        require_close(one[:1], all_rows[:1], f"{what}: an image's answer depends on its neighbours", tolerance)


def require_finite_gradients(what: str, module: nn.Module, run: Run, inputs: tuple[Tensor, ...]) -> None:
    """Gradients of the sum of all outputs are finite, for every input and parameter that it depends on."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with must_run(what):
        total = torch.stack([output.sum() for output in run(*leaves)]).sum()
        require_finite(total, f"{what}: the output")
        gradients = torch.autograd.grad(total, [*leaves, *parameters], allow_unused=True)
    for gradient in gradients:
        if gradient is not None:
            require_finite(gradient, f"{what}: the gradient")


def require_any_device(what: str, module: nn.Module, run_with: Callable[[nn.Module], Run], inputs: tuple) -> None:
    """No device is named in `forward`: tested on PyTorch's `meta` device, which every machine has."""
    with must_run(f"{what}, on another device (`meta`)"):
        elsewhere = copy.deepcopy(module).to("meta")
        for output in run_with(elsewhere)(*(tensor.to("meta") for tensor in inputs)):
            require(output.device.type == "meta", f"{what}: an output stays on {output.device}, its input is elsewhere")

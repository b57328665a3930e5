"""A network that is made wider answers as before, and what is new in it can learn."""

import torch
from widen import widen

from torchcaps.models.registry import create_model


def test_a_wider_network_answers_as_before_and_learns_in_its_new_channels() -> None:
    narrow, wide = (create_model("capsnet-multimnist-fine", channels=channels) for channels in (20, 40))
    images, labels = torch.rand(3, 1, 36, 36), torch.tensor([[0, 1], [2, 3], [4, 5]])
    narrow(images, labels), wide(images, labels)  # running statistics other than at the beginning
    widen(narrow, wide)
    assert torch.equal(narrow.eval()(images).lengths, wide.eval()(images).lengths)
    narrow.train(), wide.train()
    weight = wide.get_parameter("backbone.3.0.weight")
    wide(images, labels).lengths.sum().backward()
    assert weight.grad is not None
    assert weight.grad[:20, 10:].abs().max() > 0, "old channels begin to read new ones"
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter -= 0.1 * parameter.grad if parameter.grad is not None else 0
            parameter.grad = None
    wide(images, labels).lengths.sum().backward()
    assert weight.grad is not None
    assert weight.grad[20:].abs().max() > 0, "then the new ones learn"

"""What is kept of a parameter follows every change of it."""

import pytest
import torch

from torchcaps.kernels import compiler, native
from torchcaps.kernels.remembered import checksum, remembered


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (64, 64, 5, 5)])
def test_every_kind_of_change_is_noticed(shape: tuple, loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not loops:
        monkeypatch.setattr(native, "library", lambda name: None)
    parameter = torch.nn.Parameter(torch.randn(shape))
    kept = [remembered(parameter, "twice", lambda values: 2 * values)]

    def changed() -> bool:
        kept.append(remembered(parameter, "twice", lambda values: 2 * values))
        assert torch.equal(kept[-1], 2 * parameter)
        return kept[-1] is not kept[-2]

    assert not changed()
    with torch.no_grad():
        parameter.mul_(2)
    assert changed()
    parameter.data.mul_(2)
    assert changed()
    parameter.data = parameter.data.clone()
    assert changed()
    parameter.data[3, 1, 2, 2] += 1
    assert changed()
    assert not changed()


@pytest.mark.skipif(compiler.command() is None, reason="no C compiler here")
def test_checksum_notices_what_a_sum_does_not() -> None:
    values = torch.randn(40, 30, 5, 5)
    before = checksum(values)
    seen = [before]
    for place in (0, 17, 31, 32, 4095, 29_999):
        values.view(-1)[place] = torch.nextafter(values.view(-1)[place], torch.tensor(9.0))
        seen.append(checksum(values))
    flat = values.view(-1)
    flat[[3, 35]] = flat[[35, 3]].clone()
    seen.append(checksum(values))
    flat[:64] = flat[:64].flip(0).clone()
    seen.append(checksum(values))
    assert len({tuple(found.tolist()) for found in seen}) == len(seen)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    assert torch.equal(checksum(values), seen[-1])
    torch.set_num_threads(threads)

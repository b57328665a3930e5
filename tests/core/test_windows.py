"""Tables of windows are made once, for whichever device comes later."""

import torch

from torchcaps.core.windows import Windows


def test_tables_do_not_stay_on_the_default_device_of_their_first_call() -> None:
    windows = Windows(5, 5, 3, 2)
    for device in ("meta", "cpu"):
        with torch.device(device):
            logits = torch.rand(windows.count, 9 * 2, 4)
            assert windows.competition(logits).device.type == device
    children = windows.competition(logits)
    assert bool((children >= logits.logsumexp(2, keepdim=True) - 1e-5).all())

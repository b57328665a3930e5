"""A forecast is near what then happens, and a refusal names something that works."""

import gc
import re

import pytest
import torch
from support import forecast

from torchcaps.core.errors import UserError
from torchcaps.core.machine import memory_available
from torchcaps.models.registry import create_model, find
from torchcaps.training.forecast import peak_bytes, random_batch

MODEL = "capsnet-mnist-small"


def test_memory_is_near_what_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.training.forecast.AT_ONCE", 1e9)  # also where a step takes long
    model, batch = create_model(MODEL).to(memory_format=torch.channels_last), random_batch(find(MODEL).config, 96)

    def step() -> None:
        model.loss(model(batch.images, batch.labels), batch)["total"].backward()

    step()
    model.zero_grad()
    constant = 3 * sum(parameter.nbytes for parameter in model.parameters())
    assert forecast(MODEL, 96, 960).bytes == pytest.approx(peak_bytes(step) + constant, rel=0.2)


def test_memory_that_earlier_work_left_behind_is_not_taken_off() -> None:
    collecting: list[bool] = []
    peak_bytes(lambda: collecting.append(gc.isenabled()))
    assert collecting == [False]
    assert gc.isenabled(), "afterwards it goes on"


def test_time_of_an_epoch_is_its_steps() -> None:
    answer = forecast(MODEL, 64, 6400)
    assert answer.seconds_per_step > 0
    assert answer.seconds_per_epoch == pytest.approx(100 * answer.seconds_per_step)


def test_what_does_not_fit_is_refused_with_a_batch_that_does() -> None:
    free = 300 * 2**20
    refused = forecast(MODEL, 4096, 60000, available_bytes=free)
    with pytest.raises(UserError, match=r"batch=\d+ fits") as error:
        refused.check()
    suggested = int(re.findall(r"batch=(\d+)", str(error.value))[0])
    forecast(MODEL, suggested // 2, 60000, available_bytes=free).check()
    with pytest.raises(UserError, match="smaller model"):
        forecast(MODEL, 1, 60000, available_bytes=2**20).check()


def test_this_machine_has_memory() -> None:
    assert memory_available() > 2**20
    forecast(MODEL, 1, 100).check()


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        forecast(MODEL, 0, 100)

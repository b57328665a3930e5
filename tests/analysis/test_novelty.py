"""Images of something else: the area under the curve by hand, of sets and of folders, and what is refused."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from torchcaps.analysis.novelty import auroc, novelty, strange_images
from torchcaps.app.cli import main
from torchcaps.core.errors import UserError
from torchcaps.data import images, load_test_set
from torchcaps.data.sets import ImageSet
from torchcaps.models.registry import create_model

DIGITS = (1, 28, 28)


def noise(count: int) -> ImageSet:
    pixels = torch.rand(count, *DIGITS, generator=torch.Generator().manual_seed(0))
    return ImageSet("noise", pixels, torch.zeros(count, dtype=torch.int64), ("noise",))


def test_the_area_is_that_of_all_pairs() -> None:
    known, other = torch.rand(30).round(decimals=1), torch.rand(20).round(decimals=1)
    pairs = (known[:, None] > other).double() + 0.5 * (known[:, None] == other).double()
    assert auroc(known, other) == pytest.approx(pairs.mean().item())


def test_noise_is_told_from_digits() -> None:
    digits = images("mnist-mini", "test").take(torch.arange(200))
    found = novelty(create_model("capsnet-mnist-small", pretrained=True), digits, noise(100))
    assert (found["other"], found["images"], found["other_images"]) == ("noise", 200, 100)
    assert found["auroc_length"] > 0.95
    assert found["auroc_reconstruction"] > 0.95
    same = novelty(create_model("capsnet-mnist-small", pretrained=True), digits, digits)
    assert same["auroc_length"] == same["auroc_reconstruction"] == 0.5


def test_pairs_of_digits_and_networks_without_a_decoder() -> None:
    pairs = load_test_set("multimnist-mini", 40)
    found = novelty(create_model("capsnet-multimnist-small", pretrained=True), pairs, pairs)
    assert found["auroc_length"] == found["auroc_reconstruction"] == 0.5
    assert "auroc_reconstruction" not in novelty(create_model("cnn-multimnist-small"), pairs, pairs)


def test_a_folder_of_pictures_and_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(3):
        Image.effect_noise((40, 30), 50 + n).save(tmp_path / f"{n}.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert strange_images(str(tmp_path), DIGITS).images.shape == (3, *DIGITS)  # pyright: ignore
    with pytest.raises(UserError, match="neither a data set nor a folder"):
        strange_images("nowhere", DIGITS)
    with pytest.raises(UserError, match=r"takes images of \(1, 28, 28\), multimnist-mini has"):
        strange_images("multimnist-mini", DIGITS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no picture in it"):
        strange_images(str(tmp_path / "empty"), DIGITS)
    assert main(["evaluate", "capsnet-mnist-small", "--data", "mnist-mini", "--novel", str(tmp_path)]) in (0, None)
    assert "by reconstruction: " in capsys.readouterr().out

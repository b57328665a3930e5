"""Exported files: the same answers, the record that goes with them, and the examples that run them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from torchcaps import __version__
from torchcaps import data as named
from torchcaps.app import export as exporting
from torchcaps.app.cli import main
from torchcaps.app.export import Record, export
from torchcaps.core.errors import UserError
from torchcaps.data.readers.pictures import read_pixels
from torchcaps.data.transforms import place
from torchcaps.models.registry import create_model

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = "capsnet-mnist-small"
BLOCKED = """
import runpy, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
sys.argv = {argv!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_example(name: str, blocked: tuple[str, ...], *arguments: str) -> list[str]:
    """The lines an example prints in a process that cannot import some packages."""
    argv = [str(EXAMPLES / name), *arguments]
    code = BLOCKED.format(blocked=blocked, argv=argv)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two digits of MNIST's size, and one large and dark on light."""
    folder = tmp_path_factory.mktemp("digits")
    test = named.images("mnist-mini", "test")
    paths = [folder / f"{n}.png" for n in range(3)]
    for path, pixels in zip(paths, test.images[:3, 0], strict=True):
        Image.fromarray(pixels.numpy()).save(path)
    Image.fromarray(255 - test.images[2, 0].numpy()).resize((200, 200)).save(paths[2])
    return [str(path) for path in paths]


def test_onnx_answers_like_the_model_without_torch(
    digits: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    # Kernels that insist on running must still step aside for the exporter.
    monkeypatch.setenv("TORCHCAPS_KERNELS", "fast")
    main(["export", MODEL, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"file", "format", "model", "bytes", "outputs", "parity"}
    assert result["outputs"] == {"lengths": [10], "capsules": [10, 16], "reconstruction": [1, 28, 28]}
    assert list(result["parity"]) == ["1", "7", "64"]
    assert 0 <= max(result["parity"].values()) < 1e-5
    path = Path(result["file"])
    assert path == Path("capsnet-mnist-small.onnx")
    assert path.stat().st_size == result["bytes"]

    main(["predict", MODEL, *digits, "--json"])
    expected = json.loads(capsys.readouterr().out)
    lines = run_example("run_onnx.py", ("torch", "torchcaps"), str(path), *digits)
    for line, row in zip(lines, expected, strict=True):
        assert line == f"{row['image']}: {row['label']} ({row['lengths'][row['label']]:.4f})"

    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    record = json.loads(session.get_modelmeta().custom_metadata_map["torchcaps"])
    assert record["classes"] == list("0123456789")
    assert (record["image"], record["channels"], record["scale"]) == ([1, 28, 28], "grey", "value / 255")
    assert (record["threshold"], record["version"], record["preparation"]) == (0.5, __version__, "digit")
    assert session.get_inputs()[0].shape == ["batch", 1, 28, 28]


def test_a_program_answers_like_the_model_in_colour(tmp_path: Path) -> None:
    small = {"channels": 16, "primary_types": 2, "routing_options": {"iterations": 1}, "decoder": (8,)}
    model = create_model("capsnet", image=(3, 20, 24), classes=3, backbone="compact", **small).eval()
    record = Record("capsnet", "toys", (3, 20, 24), ("cat", "dog", "owl"), 1, 0.0, "resize")
    result = export(model, record, "torch", tmp_path / "toys.pt2")
    assert result["outputs"] == {"lengths": [3], "capsules": [3, 16], "reconstruction": [3, 20, 24]}
    paths = [str(tmp_path / f"{n}.png") for n in range(2)]
    for path in paths:
        Image.effect_noise((24, 20), 90).convert("RGB").save(path)
    lines = run_example("run_torch.py", ("torchcaps",), result["file"], *paths)
    lengths = model(torch.stack([read_pixels(path, (3, 20, 24)) for path in paths])).lengths
    for line, path, row in zip(lines, paths, lengths, strict=True):
        assert line == f"{path}: {record.classes[int(row.argmax())]} ({row.max():.4f})"


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_an_exported_window_follows_the_ink(kind: exporting.Format, tmp_path: Path) -> None:
    model = create_model("capsnet-multimnist-small", pretrained=True).eval()
    record = Record("capsnet-multimnist-small", "multimnist", (1, 36, 36), tuple("0123456789"), 2, 0.5, "resize")
    path = tmp_path / "pairs"
    export(model, record, kind, path)
    pair = next(named.load_test_set("multimnist-mini", 1).batches(1)).images
    images = place(pair.repeat(3, 1, 1, 1), torch.tensor([[0, 0], [3, -2], [-3, 4]]), 36, 36)
    found = exporting._runner(kind, path.read_bytes())(images)
    with torch.no_grad():
        expected = model(images)
    torch.testing.assert_close(found["lengths"], expected.lengths, atol=1e-5, rtol=0)
    torch.testing.assert_close(found["reconstruction"], expected.reconstruction, atol=1e-4, rtol=0)


RECORD = Record("cnn-mnist", "mnist", (1, 28, 28), tuple("0123456789"), 1, 0.5, "digit")


def test_what_is_refused_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model("cnn-mnist", design="compact")
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match="nothing was written"):
        export(model, RECORD, "torch", tmp_path / "x.pt2")
    monkeypatch.setattr(exporting, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(UserError, match=r"no_such_package: pip install 'torchcaps\[export\]'"):
        export(model, RECORD, "onnx", tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_a_cnn_answers_with_lengths_only() -> None:
    model = create_model("cnn-mnist", design="compact").eval()
    assert {name: value.shape for name, value in exporting.Answering(model)(torch.rand(2, 1, 28, 28)).items()} == {
        "lengths": (2, 10)
    }

"""The interface answers what the model itself answers, however many ask at the same time."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from conftest import running
from PIL import Image

from torchcaps.app.web.engine import Engine, Question
from torchcaps.app.web.receptive import placement
from torchcaps.app.web.samples import MOST_BYTES, _pack
from torchcaps.core.functional import coupling_entropy, mask
from torchcaps.data.folder import collect
from torchcaps.data.readers.pictures import to_pixels
from torchcaps.data.sets import ImageSet
from torchcaps.models.registry import create_model


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    pixels = torch.randint(0, 256, (1, 36, 36), generator=torch.Generator().manual_seed(1))
    return pixels / 255


def encoded(image: torch.Tensor) -> str:
    return base64.b64encode((image * 255).round().byte().numpy().tobytes()).decode()


def decoded(text: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape) / np.float32(255))


def test_about(client, model):
    about = client.get("/api/model").json()
    assert about["image"] == [1, 36, 36]
    assert about["classes"] == list("0123456789")
    assert (about["objects"], about["dimensions"], about["decoder"]) == (2, 16, True)
    types, rows, columns = model.grid
    grid = about["routing"]["grid"]
    assert (grid["types"], grid["rows"], grid["columns"]) == (types, rows, columns)


def test_look_is_what_the_model_says(client, model, image):
    answer = client.post("/api/look", json={"image": encoded(image)}).json()
    with torch.no_grad():
        output = model(image[None])
    assert answer["lengths"] == pytest.approx(output.lengths[0].tolist(), abs=1e-4)
    assert answer["longest"] == output.lengths[0].topk(2).indices.tolist()
    assert [answer["corner"]] == model.corner(image[None]).tolist()
    torch.testing.assert_close(torch.tensor(answer["capsules"]), output.capsules[0], atol=1e-4, rtol=0)
    for text, picture in zip(answer["pictures"], output.reconstruction[0], strict=True):
        torch.testing.assert_close(decoded(text, (1, 36, 36)), picture, atol=1 / 255, rtol=0)


def test_three_ways_to_send_an_image_are_one(client, image):
    bodies = [encoded(image), image.tolist(), image[0].tolist()]
    answers = [client.post("/api/look", json={"image": body}).json()["lengths"] for body in bodies]
    assert answers[0] == pytest.approx(answers[1], abs=2e-4)
    assert answers[1] == answers[2]


def test_the_example_of_the_documentation_runs(engine, model):
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    found = {}
    with running(engine, token="secret") as address:
        exec(code.replace('"..."', '"secret"').replace("http://127.0.0.1:8642", address), found)
        found["server"].close()
    lengths = model(torch.from_numpy(found["image"])[None].float() / 255).lengths[0]
    torch.testing.assert_close(torch.tensor(found["answer"]["lengths"]), lengths.detach(), atol=2e-4, rtol=0)


@pytest.mark.parametrize("corner", [None, [0, 8]])
def test_decode_is_what_the_decoder_draws(client, model, corner):
    vectors = torch.randn(3, 16, generator=torch.Generator().manual_seed(2)) / 4
    answer = client.post("/api/decode", json={"label": 7, "vectors": vectors.tolist(), "corner": corner}).json()
    layer = torch.zeros(3, 10, 16)
    layer[:, 7] = vectors
    with torch.no_grad():
        pictures = model.decoder(mask(layer, torch.full((3, 1), 7)))
        pictures = model.put_back(pictures, torch.tensor([corner or [4, 4]] * 3))[:, 0]
    for text, picture in zip(answer["pictures"], pictures, strict=True):
        torch.testing.assert_close(decoded(text, (1, 36, 36)), picture, atol=1 / 255, rtol=0)


def test_routing_is_the_models_own_trace(client, model, image):
    answer = client.post("/api/routing", json={"image": encoded(image), "parents": [4, 1]}).json()
    with torch.no_grad():
        output = model(image[None], trace=True)
    assert len(answer["iterations"]) == 5
    usual = model.classes.routing.iterations
    for iteration in range(usual):
        step = answer["iterations"][iteration]
        couplings = output.trace.couplings[iteration, 0][:, [4, 1]].T
        agreement = output.trace.agreement[iteration, 0][:, [4, 1]].T
        torch.testing.assert_close(torch.tensor(step["couplings"]), couplings, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.tensor(step["agreement"]), agreement, atol=1e-4, rtol=1e-3)
    assert answer["iterations"][usual - 1]["lengths"] == pytest.approx(output.lengths[0].tolist(), abs=1e-3)
    assert answer["iterations"][0]["spread"] == pytest.approx(10)


def test_tracing_leaves_the_model_as_it_was(engine, model, image):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    iterations = model.classes.routing.iterations
    engine.route([Question(image, None)])
    assert model.classes.routing.iterations == iterations
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_spread_counts_parents():
    couplings = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    torch.testing.assert_close(coupling_entropy(couplings).exp(), torch.tensor([4.0, 1.0, 2.0]))


def test_requests_that_pile_up_share_a_forward_pass(model, image, monkeypatch):
    engine = Engine(model, "capsnet-multimnist-small", "multimnist")
    sizes: list[int] = []
    look = engine.look
    monkeypatch.setattr(engine, "look", lambda images: (sizes.append(len(images)), look(images))[1])
    bodies = [encoded(image * shade) for shade in np.linspace(0.1, 1, 24)]
    with running(engine) as address, httpx.Client(base_url=address, timeout=60) as client:

        def ask(body: str) -> list[float]:
            return client.post("/api/look", json={"image": body}).json()["lengths"]

        with ThreadPoolExecutor(24) as pool:
            together = list(pool.map(ask, bodies))
        count = len(sizes)
        alone = [ask(body) for body in bodies]
    assert sum(sizes[:count]) == 24
    assert count < 24
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=2e-4)


def test_samples_are_real_digits(client):
    samples = client.get("/api/samples").json()
    assert samples["shape"] == [1, 28, 28]
    assert set(samples["labels"]) == set(range(10))
    assert len(base64.b64decode(samples["pixels"])) == 784 * len(samples["labels"])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_a_picture_becomes_pixels(client, kind):
    picture = Image.radial_gradient("L").resize((50, 40))
    file = io.BytesIO()
    picture.save(file, kind)
    answer = client.post("/api/picture", content=file.getvalue())
    file.seek(0)
    expected = to_pixels(Image.open(file), (1, 36, 36), handwritten=True)
    torch.testing.assert_close(decoded(answer.json()["image"], (1, 36, 36)), expected, atol=1 / 255, rtol=0)


def test_own_digits_are_not_prepared_as_mnist(model, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "cache"))
    for digit in range(10):
        (tmp_path / "own" / str(digit)).mkdir(parents=True)
        for n in range(3):
            Image.new("L", (36, 36), 255 - 10 * digit - n).save(tmp_path / "own" / str(digit) / f"{n}.png")
    record = str(collect(str(tmp_path / "own"), (1, 36, 36)))
    with running(Engine(model, "mine", record, 0.75)) as address, httpx.Client(base_url=address, timeout=60) as client:
        assert client.get("/api/model").json()["accuracy"] == 0.75
        answer = client.post("/api/picture", content=(tmp_path / "own/0/0.png").read_bytes())
    assert decoded(answer.json()["image"], (1, 36, 36)).min() == 1, "white paper stays white"


def test_there_are_as_many_samples_as_a_page_can_take():
    images = torch.zeros(100, 3, 224, 224, dtype=torch.uint8)
    packed = _pack(ImageSet("large", images, torch.arange(100) % 5, tuple("abcde")))
    assert len(packed["labels"]) == 5 * (MOST_BYTES // (5 * images[0].numel()))


@pytest.mark.parametrize(
    ("name", "data", "offers"),
    [
        ("capsnet-mnist-small", "mnist", {"decode": 200, "routing": 200}),
        ("capsnet-cifar10", "cifar10", {"decode": 404, "routing": 200}),
        ("capsnet-smallnorb", "smallnorb", {"decode": 200, "routing": 200}),
        ("cnn-multimnist", "multimnist", {"decode": 404, "routing": 404}),
    ],
)
def test_any_model_is_served(name, data, offers):
    overrides = {} if name.startswith("cnn") or "small" in name else {"channels": 16, "primary_types": 2}
    network = create_model(name, **overrides).eval()
    c, h, w = network.config.image
    body = {"image": encoded(torch.rand(c, h, w))}
    with running(Engine(network, name, data)) as address, httpx.Client(base_url=address, timeout=60) as client:
        about = client.get("/api/model").json()
        assert client.get("/api/samples").status_code == 200
        answer = client.post("/api/look", json=body).json()
        assert len(answer["lengths"]) == len(about["classes"])
        assert (answer["pictures"] is not None) == about["decoder"]
        assert client.post("/api/routing", json=body).status_code == offers["routing"]
        vectors = [[0.1] * (about["dimensions"] or 16)]
        assert client.post("/api/decode", json={"label": 0, "vectors": vectors}).status_code == offers["decode"]


def test_hidden_layers_are_served_without_their_routing():
    network = create_model("capsnet-mnist-small", channels=16, primary_types=2, decoder=(8,), hidden=((6, 8),)).eval()
    body = {"image": encoded(torch.rand(1, 28, 28))}
    with running(Engine(network, "mine", "mnist")) as address, httpx.Client(base_url=address, timeout=60) as client:
        about = client.get("/api/model").json()
        assert (about["hidden"], about["routing"], about["handwritten"]) == (1, None, True)
        assert len(client.post("/api/look", json=body).json()["lengths"]) == 10
        assert client.post("/api/routing", json=body).status_code == 404


@pytest.mark.parametrize("name", ["capsnet-mnist", "capsnet-multimnist-small", "capsnet-mnist-small", "capsnet-svhn"])
def test_capsules_sit_in_the_middle_of_what_they_see(name):
    torch.manual_seed(0)
    network = create_model(name).eval()
    _, rows, columns = network.grid
    place = placement(network, rows)
    pixels = torch.rand(1, *network.seen, requires_grad=True)
    maps = network.primary.conv(network.backbone(pixels))
    row, column = rows // 2, columns // 2
    maps[:, :, row, column].square().sum().backward()
    assert pixels.grad is not None
    strength = pixels.grad.abs().sum((0, 1))
    for axis, index in ((1, row), (0, column)):
        profile = strength.sum(axis)
        centre = float((profile * torch.arange(len(profile))).sum() / profile.sum())
        assert centre == pytest.approx(place.start + index * place.step, abs=1.5)

"""What counts as another code: what can change a number, and nothing else."""

from torchcaps.experiments.fingerprint import _reached, hashed, of_measurement, of_training, source

PLAIN = '''
import torch
from torchcaps.core.errors import UserError

def area(side: float) -> float:
    """The area of a square."""
    if side < 0:
        raise UserError("a side is not negative")
    return side * side
'''


def fingerprint(**texts: str) -> str:
    return hashed(["torchcaps.a"], {f"torchcaps.{name}": text for name, text in texts.items()}.get)


def test_rewording_is_no_change() -> None:
    reworded = """
# A comment.
from torchcaps.core.errors import UserError
import torch, math


def area(
    side: "float"
):
    "Of a square, as one learns at school."
    if side < 0:
        raise UserError("give a side of 0 or more")
    return side * side
"""
    assert fingerprint(a=reworded) == fingerprint(a=PLAIN)


def test_another_computation_is_a_change() -> None:
    assert fingerprint(a=PLAIN.replace("side * side", "side * side * 1.0")) != fingerprint(a=PLAIN)
    assert fingerprint(a=PLAIN.replace("side < 0", "side <= 0")) != fingerprint(a=PLAIN)


def test_what_is_imported_counts_wherever_it_stands() -> None:
    user = "from torchcaps.b import half\n\ndef twice(x): return half(4 * x)\n"
    half, other = "def half(x): return x / 2\n", "def half(x): return x // 2\n"
    assert fingerprint(a=user, b=half) != fingerprint(a=user, b=other)
    moved = "from torchcaps.c import half\n\ndef twice(x): return half(4 * x)\n"
    assert fingerprint(a=moved, c=half) == fingerprint(a=user, b=half), "moved to another file"
    inside = "def twice(x):\n    from torchcaps.b import half\n    return half(4 * x)\n"
    assert fingerprint(a=inside, b=half) != fingerprint(a=inside, b=other)


def test_a_training_depends_on_its_own_routing_and_data_only() -> None:
    dynamic, em = (of_training("capsnet-mnist-small", "mnist", {"routing": name}) for name in ("dynamic", "em"))
    assert dynamic != em
    assert dynamic == of_training("capsnet-mnist-small", "fashion-mnist")
    assert dynamic != of_training("capsnet-mnist-small", "affnist-style")
    assert dynamic != of_training("cnn-mnist-small", "mnist")
    reached = _reached(["torchcaps.models.capsnet", "torchcaps.training.loop"], source)
    assert {"torchcaps.nn.dense", "torchcaps.nn.losses", "torchcaps.core.functional"} <= reached
    assert not any(name.startswith(("torchcaps.kernels", "torchcaps.viz", "torchcaps.routing.em")) for name in reached)


def test_every_experiment_has_its_own_code() -> None:
    assert of_measurement("fig4") != of_measurement("fig3")

"""What the trainings of Sabour, Frosst and Hinton 2017 have in common.

The paper gives Adam with TensorFlow's defaults and an exponentially decaying learning rate, no number of steps. The
authors' released code trains in batches of 128, for 300,000 steps on MNIST and 600,000 on CIFAR-10, decaying by 0.96
every 2000. All training images are used: nothing is held out, the last step counts.
"""

from typing import Any

BATCH = 128
MNIST_STEPS, CIFAR_STEPS = 300_000, 600_000


def published(steps: int, images: int) -> dict[str, Any]:
    """The training of so many steps, in epochs of so many images."""
    return {"epochs": steps * BATCH / images, "batch": BATCH, "validation": 0, "schedule": "decay", "optimiser": "adam"}


MNIST = published(MNIST_STEPS, 60_000)
# The authors' code mirrors the crops and varies their brightness and contrast; the network standardises them.
CIFAR = {**published(CIFAR_STEPS, 50_000), "augment": {"flip": True, "brightness": 63 / 255, "contrast": 0.8}}
# Section 6: 60 M training pairs, each seen once, "the period of the decay step 10x larger".
MULTIMNIST = {**MNIST, "epochs": 1000.0, "decay_steps": 20_000, "test_pairs": 10_000_000}
# A handful of steps: enough to see that everything runs.
SMOKE: dict[str, Any] = {"epochs": 1.0, "batch": 16, "per_class": 6, "validation": 20, "test_pairs": 100}

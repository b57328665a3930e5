"""The mistakes that public capsule code makes, each made on purpose in a few lines, beside the right thing."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchcaps.core.functional import length, squash
from torchcaps.core.types import Capsules, ModelOutput, RoutingOutput
from torchcaps.data.sets import Batch, ImageSet
from torchcaps.data.synthetic.multimnist import RULES, Digits, Pairs, PairStream
from torchcaps.data.transforms import shift
from torchcaps.models.capsnet import CapsNet, CapsNetConfig
from torchcaps.nn.losses import margin_loss, reconstruction_loss
from torchcaps.nn.primary import PrimaryCaps
from torchcaps.routing import Competition, Routing, VoteShape
from torchcaps.routing.base import Recorder
from torchcaps.training.scoring import exact_match


class Procedure1(Routing):
    """The paper's routing in its plainest form, with a method to override for each mistake."""

    def __init__(self, shape: VoteShape, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = iterations

    def start(self, votes: Tensor) -> Tensor:
        return votes.new_zeros(votes.shape[:3])

    def passes(self) -> int:
        return self.iterations

    def couple(self, b: Tensor, competition: Competition | None = None) -> Tensor:
        return b.softmax(2) if competition is None else torch.exp(b - competition(b))

    def squash(self, s: Tensor) -> Tensor:
        return squash(s)

    def agree(self, votes: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bijd,bjd->bij", votes, v)

    def shown(self, number: int) -> bool:
        return True

    def forward(self, votes: Tensor, children: Capsules, *, competition=None, trace: bool = False) -> RoutingOutput:
        b, v, recorder = self.start(votes), votes[:, 0], Recorder(trace)
        for number in range(self.passes()):
            c = self.couple(b, competition)
            v = self.squash(torch.einsum("bij,bijd->bjd", c, votes))
            agreement = self.agree(votes, v)
            if self.shown(number):
                recorder.add(c, b.expand_as(c), agreement)
            b = b + agreement
        return RoutingOutput(v, length(v), recorder.trace())


def squashed_sum(routing: Routing, votes: Tensor, couplings: Tensor) -> Tensor:
    return squash(torch.einsum("bij,bijd->bjd", couplings, votes))


class SoftmaxOverChildren(Procedure1):
    def couple(self, b: Tensor, competition: Competition | None = None) -> Tensor:
        return b.softmax(1)


def squash_over_capsules(s: Tensor) -> Tensor:
    squared = s.square().sum(max(-2, -s.ndim), keepdim=True)
    return s * (torch.sqrt(squared + 1e-12) / (1 + squared))


class SquashOverCapsules(Procedure1):
    def squash(self, s: Tensor) -> Tensor:
        return squash_over_capsules(s)


class CompetesWithNobodyElse(Procedure1):
    def couple(self, b: Tensor, competition: Competition | None = None) -> Tensor:
        return b.softmax(2)


class LogitsAveragedOverBatch(Procedure1):
    def agree(self, votes: Tensor, v: Tensor) -> Tensor:
        return super().agree(votes, v).mean(0, keepdim=True).expand(len(votes), -1, -1)


class LogitsSharedByBatch(Procedure1):
    """One table of logits for all images, to which each of them adds."""

    def agree(self, votes: Tensor, v: Tensor) -> Tensor:
        return super().agree(votes, v).sum(0, keepdim=True).expand(len(votes), -1, -1)


class OnePassMore(Procedure1):
    """`range(iterations + 1)`, which its trace shows."""

    def passes(self) -> int:
        return self.iterations + 1


class HiddenFirstPass(OnePassMore):
    def shown(self, number: int) -> bool:
        return number > 0


class HiddenLastPass(OnePassMore):
    def shown(self, number: int) -> bool:
        return number < self.iterations


class AlwaysThree(Procedure1):
    """An option that is taken and ignored."""

    def passes(self) -> int:
        return 3


class AlwaysThreeButShowsWhatWasAskedFor(AlwaysThree):
    def forward(self, votes: Tensor, children: Capsules, *, competition=None, trace: bool = False) -> RoutingOutput:
        output = super().forward(votes, children, competition=competition, trace=trace)
        if output.trace is None:
            return output
        rows = torch.arange(self.iterations).clamp(max=2)
        return output._replace(trace=type(output.trace)(*(column[rows] for column in output.trace)))


def squash_by_division(s: Tensor) -> Tensor:
    n = torch.sqrt(s.square().sum(-1, keepdim=True))
    return n**2 / (1 + n**2) * s / n


class SquashByDivision(Procedure1):
    def squash(self, s: Tensor) -> Tensor:
        return squash_by_division(s)


class LogitsOnTheCPU(Procedure1):
    def start(self, votes: Tensor) -> Tensor:
        return torch.zeros(votes.shape[:3], device="cpu", dtype=votes.dtype)


class KeepsItsLogits(Procedure1):
    """Starts each call from where the last one ended."""

    kept: Tensor | float = 0.0

    def start(self, votes: Tensor) -> Tensor:
        return super().start(votes) + self.kept

    def forward(self, votes: Tensor, children: Capsules, *, competition=None, trace: bool = False) -> RoutingOutput:
        output = super().forward(votes, children, competition=competition, trace=True)
        assert output.trace is not None
        self.kept = output.trace.logits[-1].detach().mean(0)
        return output if trace else output._replace(trace=None)


class RandomCouplings(Procedure1):
    """No mistake if it is meant and said."""

    def couple(self, b: Tensor, competition: Competition | None = None) -> Tensor:
        return super().couple(torch.randn_like(b), competition)


class RandomByDesign(RandomCouplings):
    deterministic = False


class WrongAxisPrimaryCaps(PrimaryCaps):
    """The shape comes out right: [b, 24, 4, 4] seen as [b, 96, 4]."""

    def forward(self, features: Tensor) -> Tensor:
        return squash(self.conv(features).reshape(len(features), -1, self.dim))


def paper_loss(lengths: Tensor, present: Tensor, reconstruction: Tensor, targets: Tensor) -> Tensor:
    return margin_loss(lengths, present) + 0.0005 * reconstruction_loss(reconstruction, targets)


def loss_of_means(lengths: Tensor, present: Tensor, reconstruction: Tensor, targets: Tensor) -> Tensor:
    """Classes are summed, pixels averaged: 784 times less for MNIST."""
    return margin_loss(lengths, present) + 0.0005 * (reconstruction - targets).square().mean()


def loss_78_times_less(lengths: Tensor, present: Tensor, reconstruction: Tensor, targets: Tensor) -> Tensor:
    """Both averaged, over ten classes and 784 pixels (here three classes)."""
    return margin_loss(lengths, present) / 10 + 0.0005 * (reconstruction - targets).square().mean()


def loss_20_times_more(lengths: Tensor, present: Tensor, reconstruction: Tensor, targets: Tensor) -> Tensor:
    return margin_loss(lengths, present) / 20 + 0.0005 * reconstruction_loss(reconstruction, targets)


def margin_loss_averaged_over_classes(lengths: Tensor, present: Tensor) -> Tensor:
    return margin_loss(lengths, present) / lengths.shape[1]


def margin_loss_summed_over_batch(lengths: Tensor, present: Tensor) -> Tensor:
    return margin_loss(lengths, present) * len(lengths)


def mean_squared_error(reconstruction: Tensor, targets: Tensor) -> Tensor:
    return (reconstruction - targets).square().mean()


def evaluate_shifted(model: nn.Module, data: Any, batch_size: int) -> Mapping[str, object]:
    """The transforms of the training set are applied to the test set as well."""
    random = torch.Generator().manual_seed(0)
    batches = [batch._replace(images=shift(batch.images, 1, random)) for batch in data.batches(batch_size)]
    return score(model, batches)


def evaluate_full_batches_only(model: nn.Module, data: Any, batch_size: int) -> Mapping[str, object]:
    return score(model, [batch for batch in data.batches(batch_size) if len(batch.images) == batch_size])


def evaluate_mean_of_batches(model: nn.Module, data: Any, batch_size: int) -> Mapping[str, object]:
    scores = [score(model, [batch]) for batch in data.batches(batch_size)]
    accuracy = sum(float(part["accuracy"]) for part in scores) / len(scores)
    return {"accuracy": accuracy, "images": len(data)}


def evaluate_in_training_mode(model: nn.Module, data: Any, batch_size: int) -> Mapping[str, object]:
    model.train()
    right = sum(int(exact_match(model(b.images).lengths, b.labels).sum()) for b in data.batches(batch_size))
    return {"accuracy": right / len(data), "images": len(data)}


def evaluate_half_credit(model: nn.Module, data: Any, batch_size: int) -> Mapping[str, object]:
    model.eval()
    credit = sum(float(half_credit(model(b.images).lengths, b.labels).sum()) for b in data.batches(batch_size))
    return {"accuracy": credit / len(data), "images": len(data)}


def score(model: nn.Module, batches: list[Batch]) -> Mapping[str, object]:
    model.eval()
    images = sum(len(batch.images) for batch in batches)
    right = sum(int(exact_match(model(batch.images).lengths, batch.labels).sum()) for batch in batches)
    return {"accuracy": right / images, "images": images}


def train_linear(train_set: ImageSet, test_set: ImageSet, select: bool = False) -> Mapping[str, Tensor]:
    """A few noisy epochs of softmax regression; with `select`, the epoch that is best on the test set."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, len(train_set.classes)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    best, chosen = -1.0, model.state_dict()
    for _ in range(6):
        for batch in train_set.take(torch.randperm(len(train_set))).batches(16):
            optimiser.zero_grad()
            cross_entropy(model(batch.images), batch.labels[:, 0]).backward()
            optimiser.step()
        (test,) = test_set.batches(len(test_set))
        accuracy = (model(test.images).argmax(1) == test.labels[:, 0]).float().mean().item()
        if accuracy > best if select else True:
            best, chosen = accuracy, deepcopy(model.state_dict())
    return chosen


def clouds(count: int, seed: int) -> ImageSet:
    """Five classes of 8x8 images, each a noisy copy of its own pattern."""
    patterns = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(99))
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (count,), generator=random)
    images = 0.5 * patterns[labels] + 0.5 * torch.rand(count, 1, 8, 8, generator=random)
    return ImageSet("clouds", (images * 255).to(torch.uint8), labels, tuple("abcde"))


def half_credit(lengths: Tensor, labels: Tensor) -> Tensor:
    longest = lengths.topk(2, 1).indices
    return (longest.unsqueeze(2) == labels.unsqueeze(1)).flatten(1).sum(1) / 2


def match_in_order(lengths: Tensor, labels: Tensor) -> Tensor:
    return (lengths.topk(2, 1).indices == labels).all(1)


class AnyTwoDigits(Digits):
    def allowed(self, candidates: Pairs) -> Tensor:
        return torch.ones(len(candidates.digits), dtype=torch.bool)


def boxes() -> ImageSet:
    """Digits that are rectangles of noise."""
    random = torch.Generator().manual_seed(0)
    images = torch.zeros(40, 1, 12, 12, dtype=torch.uint8)
    images[:, :, 2:10, 3:9] = torch.randint(1, 256, (40, 1, 8, 6), dtype=torch.uint8, generator=random)
    return ImageSet("boxes", images, torch.arange(40) % 4, tuple("0123"))


def pairs_of(digits: Callable[..., Digits]) -> PairStream:
    return PairStream(digits(boxes(), RULES["multimnist"]), seed=0)


def pairs_from_another_split() -> PairStream:
    other = boxes()
    return PairStream(Digits(replace(other, images=other.images.flip(3)), RULES["multimnist"]), seed=0)


TINY = CapsNetConfig(image=(1, 20, 20), channels=4, primary_types=2, primary_dim=4, classes=5, dim=4, decoder=(8,))


class OnTheGPU(CapsNet):
    def forward(self, images: Tensor, labels: Tensor | None = None, trace: bool = False) -> ModelOutput:
        return super().forward(images.cuda(), labels, trace)


class Squeezed(CapsNet):
    def forward(self, images: Tensor, labels: Tensor | None = None, trace: bool = False) -> ModelOutput:
        output = super().forward(images, labels, trace)
        return output._replace(lengths=output.lengths.unsqueeze(-1).squeeze())


class KeepsItsCapsules(CapsNet):
    def forward(self, images: Tensor, labels: Tensor | None = None, trace: bool = False) -> ModelOutput:
        output = super().forward(images, labels, trace)
        self.capsules = output.capsules
        return output


class PeeksAtLabels(CapsNet):
    def forward(self, images: Tensor, labels: Tensor | None = None, trace: bool = False) -> ModelOutput:
        output = super().forward(images, labels, trace)
        if labels is None:
            return output
        chosen = torch.zeros_like(output.lengths).scatter_(1, labels.reshape(len(images), -1), 1.0)
        return output._replace(lengths=output.lengths * chosen)


TINY_NET = CapsNet(TINY)


def shown(z_scored: bool) -> Batch:
    images = torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    target = (images - images.mean()) / images.std() if z_scored else images
    return Batch(images, torch.zeros(8, 1, dtype=torch.int64), target[:, None])


def z_scored_everywhere() -> Batch:
    batch = shown(z_scored=True)
    return batch._replace(images=batch.targets[:, 0])


def wrap_around(images: Tensor, generator: torch.Generator) -> Tensor:
    y, x = torch.randint(-2, 3, (2, len(images)), generator=generator).tolist()
    return torch.stack([image.roll((dy, dx), (1, 2)) for image, dy, dx in zip(images, y, x, strict=True)])


def shift_by_two(images: Tensor, generator: torch.Generator) -> Tensor:
    return shift(images, 2, generator)


def shift_by_one(images: Tensor, generator: torch.Generator) -> Tensor:
    return shift(images, 1, generator)


def shift_all_alike(images: Tensor, generator: torch.Generator) -> Tensor:
    return shift(images[:1], 2, generator).expand_as(images).contiguous()

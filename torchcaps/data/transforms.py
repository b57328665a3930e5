"""Augmentation of whole batches at once.

Pixels are `uint8`, or floats from 0 to 1, as `[b c h w]`; outside the image pixels are zero. Places are (y, x) in
pixels, y downwards. All random numbers come from the generator: equal seeds give equal bytes. Written here because
torchvision, which has such transforms, has no CPU build that fits, and because these work on a whole batch at once.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Int64, Shaped
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate, max_pool2d, pad

from torchcaps.core.errors import UserError

# How much red, green and blue add to the brightness that an eye sees (ITU-R BT.601).
LUMA = (0.299, 0.587, 0.114)
BENT = 4
"""Along each side of an image so many points are moved at random when it is bent."""


def place(
    images: Shaped[Tensor, "b c h w"], offsets: Int[Tensor, "b 2"], height: int, width: int
) -> Shaped[Tensor, "b c height width"]:
    """Each image on an empty canvas, its top left corner at `offsets` (y, x), which may be outside: exact, by copying.

    >>> place(torch.ones(1, 1, 2, 2), torch.tensor([[1, -1]]), 3, 3)[0, 0]
    tensor([[0., 0., 0.],
            [1., 0., 0.],
            [1., 0., 0.]])
    """
    b, _, h, w = images.shape
    # A margin of the canvas on each side of the image: wherever the image lies, its canvas is one window of this.
    windows = pad(images, (width, width, height, height)).unfold(2, height, 1).unfold(3, width, 1)
    y = (height - offsets[:, 0]).clamp(0, height + h)
    x = (width - offsets[:, 1]).clamp(0, width + w)
    return windows[torch.arange(b, device=images.device), :, y, x]


def bounding_boxes(ink: Bool[Tensor, "n h w"]) -> Int64[Tensor, "n 4"]:
    """Top, left, bottom and right (exclusive) of the true pixels; top > bottom and left > right if there are none.

    >>> bounding_boxes(torch.tensor([[[False, False, True], [False, False, True]]]))
    tensor([[0, 2, 2, 3]])
    """
    first, last = [], []
    for line in (ink.any(2), ink.any(1)):
        at = torch.arange(line.shape[1], device=line.device)
        first.append(torch.where(line, at, line.shape[1]).amin(1))
        last.append(torch.where(line, at + 1, 0).amax(1))
    return torch.stack([*first, *last], 1)


def shift(images: Shaped[Tensor, "b c h w"], pixels: int, generator: Generator) -> Shaped[Tensor, "b c h w"]:
    """Move each image by up to `pixels` in each direction with zero padding, every shift equally likely."""
    offsets = torch.randint(-pixels, pixels + 1, (len(images), 2), generator=generator)
    return place(images, offsets, images.shape[2], images.shape[3])


def random_flip(images: Shaped[Tensor, "b c h w"], generator: Generator) -> Shaped[Tensor, "b c h w"]:
    """Exchange left and right with probability 1/2."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    return torch.where(mirrored, images.flip(3), images)


def affine(
    images: Shaped[Tensor, "b c h w"],
    matrices: Float[Tensor, "b 2 3"],
    height: int | None = None,
    width: int | None = None,
    bend: Float[Tensor, "b 2 height width"] | None = None,
    outside: Literal["zeros", "border"] = "zeros",
) -> Shaped[Tensor, "b c height width"]:
    """Each image moved by its own map, sampled bilinearly onto a canvas (of the image's size unless told).

    `matrices` map image to canvas: a point `p` of the image is found at `A p + t` on the canvas, with `[A | t]` the
    matrix and both points (y, x) in pixels from their centres. `bend` is how much further, in pixels of the image, each
    point of the canvas looks. Outside the image are zeros, or the nearest pixel of its border.
    """
    b, c, h, w = images.shape
    height, width = height or h, width or w
    # grid_sample asks the other way round, in (x, y) and in halves of each side: p = A⁻¹ (q - t).
    backward = torch.linalg.inv_ex(matrices[:, :, :2])[0]
    origin = -backward @ matrices[:, :, 2:]
    image = torch.tensor([2 / h, 2 / w]).to(matrices)[:, None]
    canvas = torch.tensor([height / 2, width / 2]).to(matrices)
    theta = torch.cat([(image * backward * canvas).flip(1, 2), (image * origin).flip(1)], 2)
    grid = affine_grid(theta, [b, c, height, width], align_corners=False)
    if bend is not None:
        grid = grid + (image[:, :, None] * bend).flip(1).permute(0, 2, 3, 1)
    moved = grid_sample(images.to(grid.dtype), grid, padding_mode=outside, align_corners=False)
    return moved.round_().to(torch.uint8) if images.dtype == torch.uint8 else moved


def affine_matrices(
    rotation: Float[Tensor, "b"],
    shear: Float[Tensor, "b"],
    scale: Float[Tensor, "b 2"],
    translation: Float[Tensor, "b 2"],
) -> Float[Tensor, "b 2 3"]:
    """Expand (y, x), then shear (x grows with y), then rotate (degrees, counter-clockwise as seen), then translate."""
    radians = rotation * (math.pi / 180)
    cos, sin, zero, one = radians.cos(), radians.sin(), torch.zeros_like(shear), torch.ones_like(shear)
    turn = torch.stack([cos, -sin, sin, cos], 1).unflatten(1, (2, 2))
    slant = torch.stack([one, zero, shear, one], 1).unflatten(1, (2, 2))
    return torch.cat([turn @ (slant * scale[:, None]), translation[:, :, None]], 2)


def random_affine(
    images: Shaped[Tensor, "b c h w"],
    generator: Generator,
    rotation: float = 0.0,
    scale: float = 0.0,
    shear: float = 0.0,
    shift: float = 0.0,
    crop: float = 0.0,
    bend: float = 0.0,
) -> Shaped[Tensor, "b c h w"]:
    """Random rotation by up to so many degrees, sides longer or shorter by up to the share `scale`, and so on.

    What lies outside the image has the colour of its border. `crop` shows a window with sides of 1 - `crop` to 1 of the
    image's, anywhere inside it, enlarged to its full size.
    """
    b, _, h, w = images.shape
    angle, slant = _within(generator, rotation, b), _within(generator, shear, b)
    size = 1 + _within(generator, scale, b, 2)
    offset = _within(generator, shift, b, 2)
    window = 1 - crop * torch.rand(b, 1, generator=generator)
    hidden = torch.tensor([h - 1, w - 1]) * (1 - window) / 2  # from centre to centre of the outermost pixels
    aside = _within(generator, 1.0, b, 2) * hidden
    matrices = affine_matrices(angle, slant, size / window, offset + aside / window)
    bent = bends(b, h, w, bend, generator).to(images.device) if bend else None
    return affine(images, matrices.to(images.device), bend=bent, outside="border")


def bends(b: int, h: int, w: int, pixels: float, generator: Generator) -> Float[Tensor, "b 2 h w"]:
    """Smooth displacements of up to about `pixels`: drawn at `BENT` x `BENT` points, cubic in between.

    Simard, Steinkraus and Platt, "Best practices for convolutional neural networks applied to visual document
    analysis", 2003, have elastic distortions of a finer grain for digits.
    """
    return interpolate(_within(generator, pixels, b, 2, BENT, BENT), (h, w), mode="bicubic", align_corners=True)


def colour_jitter(
    images: Shaped[Tensor, "b c h w"],
    generator: Generator,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
) -> Shaped[Tensor, "b c h w"]:
    """Each factor is drawn from 1 - x to 1 + x for each image; saturation is for images of three channels.

    Brightness multiplies, contrast moves away from the image's mean, saturation away from each pixel's own grey. All
    three are linear, so they are one weighted sum of pixel, grey and mean.
    """
    b, c = images.shape[:2]
    bright, contrasty, vivid = (1 + _within(generator, x, b, 1, 1, 1) for x in (brightness, contrast, saturation))
    pixels = images.float() if images.dtype == torch.uint8 else images
    luma = torch.tensor(LUMA if c == 3 else [1 / c] * c, dtype=pixels.dtype)
    grey = torch.einsum("bchw,c->bhw", pixels, luma)[:, None]
    mean = grey.mean((2, 3), keepdim=True)
    if c != 3:
        vivid = torch.ones_like(vivid)
    common = bright * contrasty * (1 - vivid) * grey + bright * (1 - contrasty) * mean
    jittered = torch.addcmul(common, bright * contrasty * vivid, pixels)
    if images.dtype == torch.uint8:
        return jittered.round_().clamp_(0, 255).to(torch.uint8)
    return jittered.clamp_(0, 1)


def tone(
    images: Shaped[Tensor, "b c h w"], brightness: float, contrast: float, generator: Generator
) -> Float[Tensor, "b c h w"]:
    """As TensorFlow varies them: up to `brightness` added, then distances from a channel's mean times 1 ± `contrast`.

    Values may leave the range from 0 to 1: meant for networks that standardise what they see.
    """
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images
    pixels = pixels + _within(generator, brightness, len(images), 1, 1, 1)
    mean = pixels.mean((2, 3), keepdim=True)
    return mean + (1 + _within(generator, contrast, len(images), 1, 1, 1)) * (pixels - mean)


def cutout(images: Shaped[Tensor, "b c h w"], share: float, generator: Generator) -> Shaped[Tensor, "b c h w"]:
    """A square of each image set to zero, its side `share` of the image's, its middle on any pixel.

    DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017.
    """
    inside = []
    for side in images.shape[2:]:
        size = round(share * side)
        first = torch.randint(side, (len(images), 1), generator=generator) - size // 2
        along = torch.arange(side)
        inside.append((along >= first) & (along < first + size))
    hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return images.masked_fill(hole, 0)


def wider(images: Shaped[Tensor, "b c h w"]) -> Shaped[Tensor, "b c h w"]:
    """Bright strokes one pixel wider: each value is the largest of the 2x2 pixels to its right and below."""
    return max_pool2d(pad(images.float(), (0, 1, 0, 1), mode="replicate"), 2, 1).to(images.dtype)


def narrower(images: Shaped[Tensor, "b c h w"]) -> Shaped[Tensor, "b c h w"]:
    """Bright strokes one pixel narrower: each value is the smallest of the 2x2 pixels to its right and below."""
    return (-wider(-images.float())).to(images.dtype)


def random_width(
    images: Shaped[Tensor, "b c h w"], generator: Generator, share: float = 1.0
) -> Shaped[Tensor, "b c h w"]:
    """The given share of images gets wider strokes or narrower ones, each equally likely."""
    drawn = torch.rand(len(images), 1, 1, 1, generator=generator)
    images = torch.where(drawn < share / 2, wider(images), images)
    return torch.where(drawn > 1 - share / 2, narrower(images), images)


def noisy(images: Shaped[Tensor, "b c h w"], deviation: float, generator: Generator) -> Shaped[Tensor, "b c h w"]:
    """Normal noise of a deviation from 0 to `deviation`, drawn for each image, added to every value."""
    amount = deviation * torch.rand(len(images), 1, 1, 1, generator=generator)
    added = amount * torch.randn(images.shape, generator=generator)
    if images.dtype == torch.uint8:
        return (images + 255 * added).round_().clamp_(0, 255).to(torch.uint8)
    return (images + added).clamp_(0, 1)


def _within(generator: Generator, limit: float, *shape: int) -> Tensor:
    """Uniform from -limit to limit."""
    return (2 * torch.rand(*shape, generator=generator) - 1) * limit


@dataclass(frozen=True)
class Augmentation:
    """Random changes of an image in training; each number is the largest amount, and zero switches a change off.

    `shift` and `bend` in pixels, `rotation` in degrees; `scale`, `shear`, `crop`, `colour` and `cutout` as shares. A
    shift alone copies whole pixels; together with a map that needs resampling it is one with it. `strokes` is the share
    of images whose bright strokes become one pixel wider or narrower, `noise` the largest deviation of normal noise,
    `part` the share of images that are changed at all. `brightness` and `contrast` are those of `tone`.
    """

    shift: int = 0
    rotation: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    flip: bool = False
    crop: float = 0.0
    colour: float = 0.0
    cutout: float = 0.0
    strokes: float = 0.0
    bend: float = 0.0
    noise: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    part: float = 1.0

    def __call__(self, images: Shaped[Tensor, "b c h w"], generator: Generator) -> Shaped[Tensor, "b c h w"]:
        if self.part < 1:
            chosen = (torch.rand(len(images), generator=generator) < self.part).nonzero()[:, 0]
            changed = replace(self, part=1.0)(images[chosen], generator)
            return (images if changed.dtype == images.dtype else images / 255).index_copy(0, chosen, changed)
        if self.strokes:
            images = random_width(images, generator, self.strokes)
        if self.flip:
            images = random_flip(images, generator)
        if self.rotation or self.scale or self.shear or self.crop or self.bend:
            amounts = (self.rotation, self.scale, self.shear, self.shift, self.crop, self.bend)
            images = random_affine(images, generator, *amounts)
        elif self.shift:
            images = shift(images, self.shift, generator)
        if self.colour:
            images = colour_jitter(images, generator, self.colour, self.colour, self.colour)
        if self.brightness or self.contrast:
            images = tone(images, self.brightness, self.contrast, generator)
        if self.cutout:
            images = cutout(images, self.cutout, generator)
        if self.noise:
            images = noisy(images, self.noise, generator)
        return images


PRESETS: dict[str, Augmentation] = {
    "none": Augmentation(),
    "shift": Augmentation(shift=2),
    "digits": Augmentation(shift=2, rotation=10, scale=0.1, shear=0.1),
    "natural": Augmentation(shift=4, flip=True, colour=0.2, cutout=0.25),
}


def augmentation(name: str) -> Augmentation:
    if name not in PRESETS:
        raise UserError(f"unknown augmentation '{name}'; there are {', '.join(PRESETS)}")
    return PRESETS[name]

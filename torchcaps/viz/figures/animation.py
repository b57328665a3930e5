"""An animated GIF of the reconstructions of one image during training."""

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from torchcaps.viz.figures.style import GREEN, RED, overlaid, rgb, tinted

GROUND, INK, MUTED, BAR = (13, 15, 17), (232, 234, 236), (140, 148, 156), (74, 127, 181)
SIDE, GAP, EDGE, TOP, BOTTOM, TEXT = 144, 10, 14, 36, 44, 15
# Bytes; noisy reconstructions compress badly and get fewer colours.
LARGEST, COLOURS = 600_000, (200, 64, 24, 8)
MILLISECONDS, FIRST, LAST, RETURN = 100, 600, 2600, 6


class Animation(NamedTuple):
    """A GIF, and its last frame before it starts over as a PNG."""

    gif: bytes
    last: bytes


def learning_gif(
    image: Float[Tensor, "c h w"],
    frames: Float[Tensor, "t k c h w"],
    moments: Sequence[tuple[float, str]],
    names: Sequence[str],
) -> Animation:
    """The input beside what the capsules redraw of it, frame by frame; `moments` are progress (0 to 1) and its label.

    The last frame stays for a while and then fades into the first; there must be two at least.
    """
    scenes = [_scene(image, pictures, names) for pictures in frames]
    drawn = [_caption(scene, *moment) for scene, moment in zip(scenes, moments, strict=True)]
    fades = [frames[-1].lerp(frames[0], n / (RETURN + 1)) for n in range(1, RETURN + 1)]
    drawn += [_caption(_scene(image, pictures, names), *moments[0]) for pictures in fades]
    durations = [FIRST, *[MILLISECONDS] * (len(scenes) - 2), LAST, *[MILLISECONDS // 2] * RETURN]
    last = io.BytesIO()
    drawn[len(scenes) - 1].save(last, "PNG")
    gif = b""
    for colours in COLOURS:
        gif = _encode(drawn, durations, colours)
        if len(gif) <= LARGEST:
            break
    return Animation(gif, last.getvalue())


def _encode(pictures: Sequence[Image.Image], durations: Sequence[int], colours: int) -> bytes:
    palette = _palette(pictures, colours)
    flat = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    file = io.BytesIO()
    flat[0].save(file, "GIF", save_all=True, append_images=flat[1:], duration=list(durations), loop=0, disposal=1)
    return file.getvalue()


def _scene(image: Float[Tensor, "c h w"], pictures: Float[Tensor, "k c h w"], names: Sequence[str]) -> Image.Image:
    """Input, overlay and, where there are two, each reconstruction on its own."""
    panels = [("input", rgb(image), INK), ("redrawn", overlaid(pictures), INK)]
    if len(pictures) == 2:
        panels += [
            (name, tinted(picture, colour), tuple(round(255 * c) for c in colour))
            for name, picture, colour in zip(names, pictures, (RED, GREEN), strict=True)
        ]
    canvas = Image.new("RGB", (2 * EDGE + len(panels) * (SIDE + GAP) - GAP, TOP + SIDE + BOTTOM), GROUND)
    pen, font = ImageDraw.Draw(canvas), _font()
    for n, (name, pixels, colour) in enumerate(panels):
        x = EDGE + n * (SIDE + GAP)
        picture = Image.fromarray((pixels * 255).round().astype(np.uint8))
        canvas.paste(picture.resize((SIDE, SIDE), Image.Resampling.NEAREST), (x, TOP))
        pen.text((x + SIDE / 2, TOP / 2), name, colour, font, anchor="mm")
    return canvas


def _caption(scene: Image.Image, progress: float, label: str) -> Image.Image:
    pen = ImageDraw.Draw(scene)
    y, right = TOP + SIDE + 13, scene.width - EDGE
    pen.rectangle((EDGE, y - 1, right, y), (44, 48, 54))
    pen.rectangle((EDGE, y - 1, EDGE + (right - EDGE) * progress, y), BAR)
    pen.text((EDGE, y + 16), label, MUTED, _font(), anchor="lm")
    return scene


def _palette(pictures: Sequence[Image.Image], colours: int) -> Image.Image:
    """One palette for all, so that nothing flickers, from frames spread over the whole."""
    some = [pictures[round(n)] for n in np.linspace(0, len(pictures) - 1, 6)]
    width, height = some[0].size
    sheet = Image.new("RGB", (width, height * len(some)))
    for n, picture in enumerate(some):
        sheet.paste(picture, (0, n * height))
    return sheet.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), TEXT)

"""The JSON interface. docs/api.md is its manual."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from torchcaps.app.web import parsing
from torchcaps.app.web.batching import Batcher
from torchcaps.app.web.engine import Engine, Question, Vectors, encode
from torchcaps.app.web.limits import Limits, Refused, read_body
from torchcaps.app.web.samples import load_samples
from torchcaps.kernels.workspace import return_freed_memory

Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """One thread computes, another decodes picture files; requests only wait for them."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine, self.limits = engine, limits
        self.about = JSONResponse(engine.about()).body
        self.samples = JSONResponse(load_samples(engine.data)).body
        self.handwritten = engine.data.handwritten
        # An image in base64 is a third longer, and there are vectors beside it.
        self.json_bytes = max(limits.json_bytes, 2 * math.prod(engine.image))
        compute = ThreadPoolExecutor(1, thread_name_prefix="model")
        self.pictures = ThreadPoolExecutor(1, thread_name_prefix="pictures")
        self.looks = Batcher(engine.look, compute)
        self.decodings = Batcher(engine.decode, compute)
        self.routings = Batcher(engine.route, compute, largest=8)

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, Handler, bool]] = [
            ("GET", "model", self.get_model, True),
            ("GET", "samples", self.get_samples, True),
            ("POST", "look", self.look, True),
            ("POST", "picture", self.picture, True),
            ("POST", "decode", self.decode, self.engine.decoder is not None),
            ("POST", "routing", self.routing, self.engine.traces),
        ]
        return [Route(f"/{name}", handler, methods=[method]) for method, name, handler, offered in table if offered]

    async def get_model(self, request: Request) -> Response:
        return Response(self.about, media_type="application/json")

    async def get_samples(self, request: Request) -> Response:
        return Response(self.samples, media_type="application/json")

    async def look(self, request: Request) -> Response:
        body = await self._json(request)
        return JSONResponse(await self.looks.ask(self._image(body)))

    async def decode(self, request: Request) -> Response:
        body = await self._json(request)
        label = parsing.parse_label(body.get("label"), len(self.engine.labels))
        vectors = parsing.parse_vectors(body.get("vectors"), self.engine.dim or 0)
        corner = parsing.parse_corner(body.get("corner"), self.engine.window)
        return JSONResponse(await self.decodings.ask(Vectors(label, vectors, corner)))

    async def routing(self, request: Request) -> Response:
        body = await self._json(request)
        parents = parsing.parse_labels(body.get("parents"), len(self.engine.labels))
        return JSONResponse(await self.routings.ask(Question(self._image(body), parents)))

    async def picture(self, request: Request) -> Response:
        content = await read_body(request, self.limits.picture_bytes, self.limits.body_seconds)
        loop = asyncio.get_running_loop()
        pixels = await loop.run_in_executor(self.pictures, self._read_picture, content)
        return JSONResponse({"image": encode(pixels)})

    def _read_picture(self, content: bytes) -> Tensor:
        """A picture file of 70 kB may take 250 MB while it is decoded, which are not kept for the next one."""
        try:
            return parsing.read_picture(content, self.engine.image, self.handwritten)
        finally:
            return_freed_memory()

    def _image(self, body: dict[str, Any]) -> Any:
        return parsing.parse_image(body.get("image"), self.engine.image)

    async def _json(self, request: Request) -> dict[str, Any]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "the body must be JSON, with content-type application/json")
        return parsing.parse_object(await read_body(request, self.json_bytes, self.limits.body_seconds))

"""Requests that arrive while the model is busy are answered together, in one forward pass."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Calls `function` with as many waiting items as there are, up to `largest`; an idle model starts at once."""

    def __init__(self, function: Callable[[list[Item]], list[Answer]], executor: Executor, largest: int = 32) -> None:
        self.function, self.executor, self.largest = function, executor, largest
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self.largest], self._waiting[self.largest :]
                await self._answer([(item, future) for item, future in batch if not future.cancelled()])
        finally:
            self._worker = None

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        if not batch:
            return
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self.executor, self.function, [item for item, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)

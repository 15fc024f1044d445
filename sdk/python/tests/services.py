"""What the tests of the daemon's services share: calls over both fronts, the errors of a
daemon, and messages in which everything is set."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import rdsd
import rdsd.aio
from rdsd._grpc import _detail_messages


def abort(context: grpc.ServicerContext, number: int, text: str) -> None:
    """As the daemon does: the errno is in the details of the status."""
    status_class, info_class = _detail_messages()
    status = status_class(code=grpc.StatusCode.UNKNOWN.value[0], message=text)
    info = info_class(domain="rdsd")
    info.metadata.add(key="errno", value=str(number))
    status.details.add(
        type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString()
    )
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, text)


class Calls:
    """One service of a client of either front, in async tests: synchronous calls run in a
    thread."""

    def __init__(self, name: str, target: str, service: str) -> None:
        self.name = name
        self.service = service
        kind: Any = rdsd.Client if name == "sync" else rdsd.aio.Client
        self.client: Any = kind(target)

    async def do(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.name == "sync":
            return await asyncio.to_thread(call, *args, **kwargs)
        return await call(*args, **kwargs)

    async def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        call = getattr(getattr(self.client, self.service), method)
        return await self.do(call, *args, timeout=10, **kwargs)

    async def next(self, watch: Any) -> Any:
        if self.name == "aio":
            return await anext(watch)
        end = object()
        item = await asyncio.to_thread(next, watch, end)
        if item is end:
            raise StopAsyncIteration
        return item


def fill(message: Message) -> None:
    """Sets every field, those of messages inside too, to something."""
    for field in message.DESCRIPTOR.fields:
        value: Any = {
            FieldDescriptor.TYPE_STRING: "text",
            FieldDescriptor.TYPE_BYTES: b"\x0a\0\0\1",
            FieldDescriptor.TYPE_BOOL: True,
            FieldDescriptor.TYPE_ENUM: 1,
        }.get(field.type, 5)
        inner: Any = getattr(message, field.name)
        repeated = hasattr(inner, "append") or hasattr(inner, "add")
        if field.message_type is not None:
            inner = inner.add() if repeated else inner
            inner.SetInParent()
            fill(inner)
        elif repeated:
            inner.append(value)
        else:
            setattr(message, field.name, value)


def empty(value: Any, name: str) -> Iterator[str]:
    """The parts of a value that are zero, false or empty."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from empty(getattr(value, field.name), f"{name}.{field.name}")
    elif not value:
        yield name
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from empty(item, f"{name}[{i}]")

"""What both fronts need of gRPC: channel options, and its errors as ours."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ._errors import Closed, RdsError, errno_from_code, error_from_errno, make
from ._surface import CLOSED
from ._target import ENDED, NO_SOCKET, NOT_ALLOWED, unix_path

#: A received message may hold a full window. The channel's own reconnection
#: must not be slower than the core's backoff, and channels share nothing, so
#: that one client's dead daemon does not delay another's.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # how long one attempt may take, in fact
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
]

_DETAILS = "grpc-status-details-bin"
#: What gRPC says of a call whose channel this program has closed.
_CHANNEL_CLOSED = "Channel closed!"
_DOMAIN = "rdsd"


def from_grpc(error: grpc.RpcError, target: str = "") -> RdsError:
    """The typed error of a gRPC one, with the exact errno when the daemon sent it."""
    code_of = getattr(error, "code", None)
    code = code_of() if callable(code_of) else None
    name = code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    details_of = getattr(error, "details", None)
    text = (details_of() if callable(details_of) else None) or str(error)
    exact = _exact_errno(error)
    if exact:
        return error_from_errno(exact, text)
    if name == "CANCELLED" and _CHANNEL_CLOSED in text:
        return make(Closed, CLOSED)
    if name == "UNAVAILABLE" and target:
        text = f"no daemon answers at {target}: {_why_nobody(target, text)}"
    return error_from_errno(errno_from_code(name), text)


def _why_nobody(target: str, text: str) -> str:
    """What is wrong with a Unix socket and what would be right; gRPC's words for other targets."""
    path = unix_path(target)
    if not path or path.startswith("@"):
        return text
    if "Permission denied" in text:
        return NOT_ALLOWED
    if not os.path.exists(path):
        return NO_SOCKET
    if "refused" in text:
        return ENDED
    return text


def _exact_errno(error: grpc.RpcError) -> int:
    """The errno in the status details, 0 when there is none."""
    metadata_of = getattr(error, "trailing_metadata", None)
    metadata = metadata_of() if callable(metadata_of) else None
    for key, value in metadata or ():
        if key == _DETAILS and isinstance(value, bytes):
            return _errno_of_details(value)
    return 0


def _errno_of_details(raw: bytes) -> int:
    status_class, info_class = _detail_messages()
    try:
        for detail in status_class.FromString(raw).details:
            if not detail.type_url.endswith("/google.rpc.ErrorInfo"):
                continue
            info = info_class.FromString(detail.value)
            if info.domain != _DOMAIN:
                continue
            for entry in info.metadata:
                if entry.key == "errno" and entry.value.isdigit():
                    return int(entry.value)
    except Exception:  # another's malformed detail must not hide the error itself
        return 0
    return 0


@cache
def _detail_messages() -> tuple[Any, Any]:
    """google.rpc.Status and ErrorInfo in a descriptor pool of their own.

    googleapis-common-protos has them too; a private pool spares the dependency
    and cannot clash with it.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="rdsd/status_details.proto", package="google.rpc", syntax="proto3"
    )

    def message(name: str, *fields: tuple[str, int, str]) -> None:
        m = file.message_type.add(name=name)
        for number, (field_name, kind, type_name) in enumerate(fields, start=1):
            repeated = field_name in ("details", "metadata")
            m.field.add(
                name=field_name,
                number=number,
                type=kind,
                type_name=type_name or None,
                label=field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL,
            )

    message("Any", ("type_url", field.TYPE_STRING, ""), ("value", field.TYPE_BYTES, ""))
    message(
        "Status",
        ("code", field.TYPE_INT32, ""),
        ("message", field.TYPE_STRING, ""),
        ("details", field.TYPE_MESSAGE, ".google.rpc.Any"),
    )
    message("Entry", ("key", field.TYPE_STRING, ""), ("value", field.TYPE_STRING, ""))
    message(
        "ErrorInfo",
        ("reason", field.TYPE_STRING, ""),
        ("domain", field.TYPE_STRING, ""),
        ("metadata", field.TYPE_MESSAGE, ".google.rpc.Entry"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return (
        message_factory.GetMessageClass(pool.FindMessageTypeByName("google.rpc.Status")),
        message_factory.GetMessageClass(pool.FindMessageTypeByName("google.rpc.ErrorInfo")),
    )

"""The messages and methods of ``protos/*.proto``, from ``descriptors.binpb`` of ``make protos``.

Generated modules would put them into the process's common pool, where a client library that is
imported beside us may have other messages of the same names.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

Message = Any  # the classes are made at run time

_FILES = FileDescriptorSet.FromString(
    files("sentiment_service.adapters.grpc").joinpath("descriptors.binpb").read_bytes()
)
POOL = DescriptorPool()
for _file in _FILES.file:
    POOL.AddSerializedFile(_file.SerializeToString())


@dataclass(frozen=True, slots=True)
class Method:
    """A method as the .proto file declares it. ``streams``: it has any number of messages."""

    request: type[Message]
    response: type[Message]
    streams: bool


def more_fields(content: bytes, kind: Descriptor, most: int) -> bool:
    """Whether an encoded message has more fields than that, those of its parts included."""
    try:
        return _fields(content, 0, len(content), kind, most) < 0
    except IndexError:  # a field goes beyond the end
        raise DecodeError from None


def _fields(content: bytes, at: int, end: int, kind: Descriptor, remaining: int) -> int:
    """What remains after the fields between ``at`` and ``end``; below 0 if they are too many."""
    parts = _parts(kind)
    while at < end and remaining >= 0:
        remaining -= 1
        tag, at = _varint(content, at)
        match tag & 7:
            case 0:
                _, at = _varint(content, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(content, at)
                if part := parts.get(tag >> 3):
                    remaining = _fields(content, at, at + size, part, remaining)
                at += size
            case 5:
                at += 4
            case _:  # a group; no message here has any
                raise DecodeError
    return remaining


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends."""
    number = shift = 0
    while (byte := content[at]) >= 128 and shift < 63:
        number |= (byte & 127) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1


@cache
def _parts(kind: Descriptor) -> dict[int, Descriptor]:
    return {field.number: field.message_type for field in kind.fields if field.message_type}


METHODS = {  # by their paths
    f"/{service.full_name}/{method.name}": Method(
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming or method.server_streaming,
    )
    for file in _FILES.file
    for service in POOL.FindFileByName(file.name).services_by_name.values()
    for method in service.methods
}
# The full names of the services, such as inference.GRPCInferenceService.
SERVICES = sorted({path.split("/")[1] for path in METHODS})

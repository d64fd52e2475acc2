"""The messages and methods of ``protos/*.proto``, read from ``descriptors.binpb``.

``make protos`` writes that file. The messages are in a pool of their own. Generated modules would
put them into the process's common pool, where a client library that is imported beside us may have
other messages of the same names.
"""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

Message = Any  # the classes are made at run time

_FILES = FileDescriptorSet.FromString(
    files("app.grpc_api").joinpath("descriptors.binpb").read_bytes()
)
POOL = DescriptorPool()
for _file in _FILES.file:
    POOL.AddSerializedFile(_file.SerializeToString())


@dataclass(frozen=True, slots=True)
class Method:
    """A method as the .proto file declares it. ``streams``: it has any number of messages."""

    path: str
    request: type[Message]
    response: type[Message]
    streams: bool


def message(name: str) -> type[Message]:
    """The class of a message, by its full name."""
    found: type[Message] = GetMessageClass(POOL.FindMessageTypeByName(name))
    return found


def _methods() -> dict[str, Method]:
    services = [
        service
        for file in _FILES.file
        for service in POOL.FindFileByName(file.name).services_by_name.values()
    ]
    return {
        (path := f"/{service.full_name}/{method.name}"): Method(
            path,
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
            method.client_streaming or method.server_streaming,
        )
        for service in services
        for method in service.methods
    }


METHODS = _methods()
# The full names of the services, such as tei.v1.Predict.
SERVICES = sorted({path.split("/")[1] for path in METHODS})

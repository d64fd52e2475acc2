"""The gRPC server, in the same event loop as the HTTP server."""

import time

import grpc

from app.errors import UserError
from app.grpc_api import health, open_inference, reflection, tei
from app.grpc_api.call import Answers
from app.grpc_api.calls import Calls
from app.service import Service


class GrpcServer:
    """Answers gRPC calls from ``start`` to ``stop``. Create it on the event loop.

    Raises:
        UserError: the address cannot be used.
    """

    def __init__(self, service: Service) -> None:
        settings = service.settings
        answers: Answers = {**health.ANSWERS, **open_inference.ANSWERS, **tei.ANSWERS}
        if settings.docs == "on":
            answers = {**answers, **reflection.ANSWERS}
        self._server = grpc.aio.server(
            options=[
                # Otherwise two services could listen on the same port, and share its calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.max_metadata_size", settings.max_header_bytes),
                ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
            ]
        )
        self._server.add_generic_rpc_handlers([Calls(service, answers)])
        host, port = settings.host, settings.grpc_port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self._server.add_insecure_port(self.address)
        except RuntimeError:  # gRPC's log says why
            raise UserError(f"cannot listen on {host} port {port} for gRPC") from None

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    async def stop(self, until: float) -> None:
        """Accept no more calls, and finish those in progress until ``until``.

        New calls get UNAVAILABLE. ``until`` is on the clock ``time.monotonic``.
        """
        await self._server.stop(max(0.0, until - time.monotonic()))

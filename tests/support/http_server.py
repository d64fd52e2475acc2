"""An HTTP server whose answers the test decides."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Status, headers and body; None closes the connection without an answer.
Answer = tuple[int, Mapping[str, str], bytes] | None


@contextmanager
def listening(
    answer: Callable[[BaseHTTPRequestHandler, bytes], Answer], protocol: str = "HTTP/1.1"
) -> Iterator[str]:
    """The URL of a server that answers a request and its body so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answered = answer(self, body)
            if answered is None:
                self.close_connection = True
                return
            status, headers, content = answered
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            """Write no log."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # so many can connect at the same moment

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

"""A reward server on this machine, as real as one elsewhere: HTTP over a socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


@dataclass
class RewardServer:
    """What was asked, and what is answered.

    Attributes:
        answer: Request -> status and answer (JSON, or bytes as they are).
        requests: All that arrived.
        most: Most requests that were in work at a time.
    """

    answer: Callable[[dict[str, Any]], Answer]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, request: dict[str, Any]) -> Answer:
        with self._lock:
            self.requests.append(request)
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            return self.answer(request)
        finally:
            with self._lock:
                self._now -= 1


def lengths(request: dict[str, Any]) -> Answer:
    """The length of each response is its reward."""
    pairs = zip(request["query"], request["prompts"], strict=True)
    return 200, {"rewards": [float(len(query) - len(prompt)) for query, prompt in pairs]}


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Answer] = lengths) -> Iterator[RewardServer]:
    """A server that answers so, on a free port."""
    server = RewardServer(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, told = server.handle(json.loads(body))
            data = told if isinstance(told, bytes) else json.dumps(told).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # Whoever asked has given up.

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # A handler that still waits is no reason to wait for it.
    http.block_on_close = False
    server.url = f"http://127.0.0.1:{http.server_port}/score"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()

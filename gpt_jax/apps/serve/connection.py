"""HTTP connections: no more than a limit, and none whose client is too slow."""

import asyncio
from typing import Any

from gpt_jax.apps.serve.fields import Refusal


def make_protocol(read_seconds: float, write_seconds: float, most: int) -> type[asyncio.Protocol]:
  """uvicorn's HTTP protocol, with limits that it does not have.

  Args:
    read_seconds: for the headers of a request, from the connection or its first byte on.
    write_seconds: for which a client may not read what was written for it.
    most: connections at a time; those beyond are answered with status 503.
  """
  from h11 import IDLE
  from starlette.responses import JSONResponse
  from uvicorn.protocols.http.h11_impl import H11Protocol

  busy = Refusal(f"{most} connections are open already; try again soon", 503, retry_after=1)
  headers = {"Retry-After": str(busy.retry_after), "Connection": "close"}
  refuse = JSONResponse(busy.body, busy.status, headers)

  class Protocol(H11Protocol):
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
      super().connection_made(transport)
      if len(self.connections) > most:  # uvicorn's own limit answers with plain text
        self.app = refuse
      self._watch_headers()

    def data_received(self, data: bytes) -> None:
      super().data_received(data)
      self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
      for timer in (self._reading, self._writing):
        if timer is not None:
          timer.cancel()
      super().connection_lost(exc)

    def pause_writing(self) -> None:
      super().pause_writing()
      self._writing = self.loop.call_later(write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
      super().resume_writing()
      if self._writing is not None:
        self._writing.cancel()

    def _watch_headers(self) -> None:
      incomplete = self.conn.their_state is IDLE  # h11's name for headers that have not ended
      if incomplete and self._reading is None:
        self._reading = self.loop.call_later(read_seconds, self.transport.abort)
      elif not incomplete and self._reading is not None:
        self._reading.cancel()
        self._reading = None

  return Protocol

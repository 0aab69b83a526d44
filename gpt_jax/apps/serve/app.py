"""The routes of the server, as an ASGI application."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt_jax.apps.serve.completions import Choice, join_pieces, read_request
from gpt_jax.apps.serve.engine import MAX_FILLINGS, Engine, Job
from gpt_jax.apps.serve.fields import Fields, Refusal, check_text
from gpt_jax.errors import counted

if TYPE_CHECKING:
  from starlette.applications import Starlette
  from starlette.requests import Request as HTTPRequest

MAX_BODY = 1 << 20  # bytes
_MAX_DISCARDED = 1 << 24  # bytes of a body that is refused as too large
MAX_TEXTS = 256  # of one request to /classify, /embed or /fill-mask
_BODY_SECONDS = 10.0  # in which a body must arrive


def make_app(engine: Engine, name: str, hosts: Sequence[str] = ("*",)) -> "Starlette":
  """The application. The engine must have been started.

  Args:
    name: of the model, as in /v1/models.
    hosts: values of the Host header that are served, so that no other web site can have its pages
      read answers by resolving its own name to this machine; "*": any.
  """
  from prometheus_client import generate_latest
  from starlette.applications import Starlette
  from starlette.middleware import Middleware
  from starlette.middleware.trustedhost import TrustedHostMiddleware
  from starlette.responses import HTMLResponse, JSONResponse
  from starlette.responses import Response as Plain
  from starlette.routing import Route

  api = _Api(engine, name)
  page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
  started = int(time.time())

  async def home(request: "HTTPRequest") -> HTMLResponse:
    return HTMLResponse(page, headers={"Cache-Control": "no-store"})

  async def health(request: "HTTPRequest") -> JSONResponse:
    status = "ok" if engine.is_alive() else "the model's thread has ended"
    about = {"status": status, "model": name, "waiting": engine.waiting, **api.about}
    return JSONResponse(about, 200 if engine.is_alive() else 503)

  async def metrics(request: "HTTPRequest") -> Plain:
    text = generate_latest(api.counters.registry)
    return Plain(text, media_type="text/plain; version=0.0.4")

  async def models(request: "HTTPRequest") -> JSONResponse:
    common = {"object": "model", "created": started, "owned_by": "gpt_jax"}
    # Clients of OpenAI's API choose among these.
    listed = [{"id": each, **common} for each in (name, *engine.adapters)]
    return JSONResponse({"object": "list", "data": listed})

  async def on_error(request: "HTTPRequest", error: Any) -> JSONResponse:
    status = getattr(error, "status_code", 500)
    known = {404: "no such path; try /", 405: "another method is needed on this path"}
    message = known.get(status, "a fault of the server; its log says more")
    return JSONResponse(Refusal(message, status).body, status, getattr(error, "headers", None))

  return Starlette(
    routes=[
      Route("/", home),
      Route("/health", health),
      Route("/metrics", metrics),
      Route("/v1/models", models),
      Route("/v1/completions", api.route(api.complete, engine.generates), methods=["POST"]),
      Route("/classify", api.route(api.classify), methods=["POST"]),
      Route("/embed", api.route(api.embed, engine.embeds), methods=["POST"]),
      Route("/fill-mask", api.route(api.fill_mask, engine.fills), methods=["POST"]),
    ],
    middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
    exception_handlers={404: on_error, 405: on_error, Exception: on_error},
  )


class _Api:
  """The routes that need the model. Each returns JSON, or an iterator over a stream's events."""

  def __init__(self, engine: Engine, name: str):
    self.engine, self.name = engine, name
    self.counters = _Counters(lambda: engine.waiting)
    engine.observe = self.counters.observe
    model = engine.model
    self.about = {
      "classifies": not engine.classifies,
      "embeds": not engine.embeds,
      "generates": not engine.generates,
      "fills": not engine.fills,
      "labels": list(model.labels) if not engine.classifies else [],
      "columns": list(model.columns),
      "adapters": {key: list(adapter.labels) for key, adapter in engine.adapters.items()},
      "context": model.loaded.context,
    }

  def route(self, handler: Callable[..., Any], unable: str = "") -> Callable[..., Any]:
    """The handler as an endpoint: with limits on the body, errors as JSON, and counters.

    unable: why the model does not answer such requests; "": it does.
    """
    from starlette.responses import JSONResponse, StreamingResponse

    async def endpoint(request: "HTTPRequest") -> Any:
      begun, path = time.monotonic(), request.url.path
      response: Any
      try:
        body = await _read_body(request)
        _refuse_other_sites(request)
        fields = Fields(body)
        if unable:
          raise Refusal(unable)
        result = await _unless_disconnected(request, handler(fields))
        if isinstance(result, dict):
          response = JSONResponse(result)
        else:
          response = StreamingResponse(_events(result), media_type="text/event-stream")
      except Refusal as refusal:
        headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else None
        response = JSONResponse(refusal.body, refusal.status, headers)
      self.counters.requests.labels(path, response.status_code).inc()
      self.counters.seconds.labels(path).observe(time.monotonic() - begun)
      return response

    return endpoint

  async def classify(self, fields: Fields) -> dict[str, Any]:
    # The checkpoint itself where a request names no model.
    adapters, wanted = self.engine.adapters, fields.take("model")
    name, model, kind = self.name, self.engine.model, "classify"
    if isinstance(wanted, str) and wanted in adapters:
      name, model, kind = wanted, adapters[wanted], f"classify {wanted}"
    elif wanted not in (None, self.name):
      here = ", ".join(map(repr, (self.name, *adapters)))
      raise Refusal(f"model: {wanted!r} is not here; this server has {here}", 404, "model")
    elif self.engine.classifies:
      use = ", ".join([*(f"model={key}" for key in adapters), "/v1/completions or /embed"])
      raise Refusal(f"{self.engine.classifies}; use {use}")
    task = model.loaded.task
    texts = _read_rows(fields, task)
    answers = await self._ask(kind, texts)
    results = [task.served(answer) for answer in answers]
    # On another thread than the model's and the event loop's, since long texts take a while.
    truncated = await asyncio.to_thread(model.truncated, texts)
    for result, is_truncated in zip(results, truncated, strict=True):
      result |= {"truncated": True} if is_truncated else {}
    return {"model": name, "results": results}

  async def embed(self, fields: Fields) -> dict[str, Any]:
    texts = fields.strings("texts", MAX_TEXTS)
    fields.refuse_others()
    vectors = await self._ask("embed", texts)
    return {"model": self.name, "embeddings": vectors.tolist()}

  async def fill_mask(self, fields: Fields) -> dict[str, Any]:
    texts = fields.strings("texts", MAX_TEXTS)
    top_k = fields.integer("top_k", 5, 1, MAX_FILLINGS)
    fields.refuse_others()
    results = []
    # The engine gives as many as any request may ask for, so that a batch has one number.
    for masks in await self._ask("fill", texts):
      results.append([[filling._asdict() for filling in mask[:top_k]] for mask in masks])
    return {"model": self.name, "results": results}

  async def complete(self, fields: Fields) -> Any:
    request = read_request(fields, self.engine.model, self.name)
    tokenizer = self.engine.model.network.tokenizer
    choices = [Choice(index, request, tokenizer) for index in range(len(request.texts))]
    updates = self._updates(choices)
    if not request.stream:
      pieces: list[list[dict[str, Any]]] = [[] for _ in choices]
      async for piece in updates:
        pieces[piece["index"]].append(piece)
      tokens = sum(choice.tokens for choice in choices)
      return request.whole(list(map(join_pieces, pieces)), tokens)
    first = await anext(updates)  # so that a full queue is a status, not an event

    async def stream() -> AsyncGenerator[dict[str, Any], None]:
      async with contextlib.aclosing(updates):
        yield request.piece([first])
        async for piece in updates:
          if piece["text"] or piece["logprobs"] or piece["finish_reason"]:
            yield request.piece([piece])
      if request.usage:
        yield request.whole([], sum(choice.tokens for choice in choices))

    return stream()

  async def _ask(self, kind: str, texts: Sequence[Any]) -> Any:
    """The results of one job."""
    results, deliver = _mailbox()
    job = Job(kind, deliver, texts)
    self.engine.submit([job])
    try:
      result = await results.get()
    finally:
      self.engine.drop([job])  # the client may have left
    if isinstance(result, Refusal):
      raise result
    return result

  async def _updates(self, choices: list[Choice]) -> AsyncGenerator[dict[str, Any], None]:
    """The updates of all choices until they are complete, as they are written."""
    results, deliver = _mailbox()
    by_text = {choice.source: choice for choice in choices}
    jobs = {text: Job("complete", deliver, text=text) for text in by_text}
    self.engine.submit(list(jobs.values()))
    try:
      while any(choice.finish is None for choice in choices):
        result = await results.get()
        if isinstance(result, Refusal):
          raise result
        choice = by_text[result]
        if choice.finish is None:
          yield choice.update()
          if choice.finish == "stop":
            self.engine.drop([jobs[result]])
    finally:
      self.engine.drop(list(jobs.values()))


class _Counters:
  """The numbers of /metrics in Prometheus's format: requests, texts, tokens, times, batches."""

  def __init__(self, waiting: Callable[[], float]):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    self.registry = CollectorRegistry()

    def add(kind: Any, name: str, help: str, labels: Sequence[str] = (), **options: Any) -> Any:
      return kind(f"gpt_jax_{name}", help, labels, registry=self.registry, **options)

    seconds = "time until a response, or the first event of a stream"
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    together = "texts that the model processed together"
    self.requests = add(Counter, "requests", "requests by route and status", ["route", "status"])
    self.seconds = add(Histogram, "request_seconds", seconds, ["route"])
    self.batch = add(Histogram, "batch_texts", together, ["kind"], buckets=sizes)
    self.tokens = add(Counter, "generated_tokens", "tokens generated")
    add(Gauge, "waiting_texts", "texts in the queue").set_function(waiting)

  def observe(self, kind: str, count: int) -> None:
    if kind == "tokens":
      self.tokens.inc(count)
    else:
      self.batch.labels(kind).observe(count)


def _mailbox() -> tuple[asyncio.Queue[Any], Callable[[Any], None]]:
  """A queue of this event loop, and a function that puts values into it from another thread."""
  loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()

  def deliver(value: Any) -> None:
    if not loop.is_closed():  # at the end of the server
      loop.call_soon_threadsafe(queue.put_nowait, value)

  return queue, deliver


async def _read_body(request: "HTTPRequest") -> bytes:
  too_large = Refusal(f"the body is larger than {MAX_BODY:,} bytes", 413)
  length = request.headers.get("content-length", "0")
  declared = int(length[:20]) if length.isdecimal() else _MAX_DISCARDED + 1
  # A client that sends all of its body before it reads would see a reset instead of the answer.
  if declared > (MAX_BODY if "expect" in request.headers else _MAX_DISCARDED):
    raise too_large
  body, received = bytearray(), 0
  try:
    async with asyncio.timeout(_BODY_SECONDS):
      async for chunk in request.stream():
        received += len(chunk)
        if received > _MAX_DISCARDED:
          raise too_large
        if received <= MAX_BODY:
          body += chunk
  except TimeoutError as error:
    raise Refusal(f"the body did not arrive within {_BODY_SECONDS:g} seconds", 408) from error
  if received > MAX_BODY:
    raise too_large
  return bytes(body)


def _refuse_other_sites(request: "HTTPRequest") -> None:
  """Raises Refusal for a request that a browser sends for the page of another web site, which could
  keep the model busy. Without a preflight, which is not answered here, it cannot send JSON as such.
  """
  headers = request.headers
  origin = headers.get("origin")
  is_foreign = origin is not None and origin.partition(":")[2] != f"//{headers.get('host')}"
  if is_foreign or headers.get("sec-fetch-site") == "cross-site":
    site = f"Origin {origin!r}" if is_foreign else "Sec-Fetch-Site 'cross-site'"
    raise Refusal(f"{site}: pages of other web sites may not use this server", 403)
  kind = headers.get("content-type", "").partition(";")[0].strip().lower()
  if kind != "application/json":
    message = f"Content-Type {kind!r} should be 'application/json', which curl sends for --json"
    raise Refusal(message, 415)


def _read_rows(fields: Fields, task: Any) -> list[Any]:
  """The texts to classify: strings, or lists of strings where the Task has several columns."""
  rows = fields.take("texts")
  rows = [rows] if isinstance(rows, str) else rows
  fields.refuse_others()
  if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_TEXTS:
    raise Refusal(f"texts: give a list of 1 to {MAX_TEXTS} texts", param="texts")
  for number, row in enumerate(rows):
    place, cells = f"texts[{number}]", row if isinstance(row, list) else [row]
    if len(cells) != (columns := len(task.columns_of(len(cells)))):
      message = f"{counted(len(cells), 'column')}; a text of this task is a list of {columns}"
      raise Refusal(f"{place}: {message}", param="texts")
    for cell in cells:
      check_text(cell, place, "texts")
    if task.empty_column(cells):
      raise Refusal(f"{place}: empty; give at least one word", param="texts")
  return rows


async def _unless_disconnected(request: "HTTPRequest", work: Any) -> Any:
  """The result of a coroutine, which is cancelled if the client leaves before."""
  from starlette.requests import ClientDisconnect

  async def disconnected() -> None:
    while (await request.receive())["type"] != "http.disconnect":
      pass

  working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
  try:
    await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
      raise ClientDisconnect()
    return working.result()
  finally:
    for task in (working, leaving):
      task.cancel()


async def _events(values: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[str, None]:
  """Server-sent events of JSON values, and OpenAI's mark of the end."""
  try:
    async with contextlib.aclosing(values):
      async for value in values:
        yield f"data: {json.dumps(value)}\n\n"
        # Several events may be ready at once. Between two the event loop can notice that the client
        # has left; asyncio logs a warning for what is written after that.
        await asyncio.sleep(0)
  except Refusal as refusal:
    yield f"data: {json.dumps(refusal.body)}\n\n"
  yield "data: [DONE]\n\n"

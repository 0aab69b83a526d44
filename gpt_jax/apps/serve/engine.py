"""The one thread that runs the model, for all clients: a bounded queue, batched across requests.

It works in turns: a batch of texts to classify, one to embed, one to fill in, then a few tokens for
every text that is being continued, so that none waits for another's end.
"""

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt_jax.apps.serve.fields import Refusal
from gpt_jax.errors import InputError
from gpt_jax.inference.model import Model
from gpt_jax.inference.stream import Stream
from gpt_jax.models.decoding_weights import keep_weights

MAX_QUEUE = 512  # texts; more are refused with status 503
MAX_FILLINGS = 100  # tokens at each mask
_BATCH = 32  # texts to classify, embed or fill in at a time
_FILL = 0.003  # seconds that an idle model waits for others to join a batch
_GRACE = 2.0  # seconds that texts have to end after `close`


@dataclasses.dataclass(eq=False)
class Job:
  kind: str  # "classify", "classify NAME" by an adapter, "embed", "fill" or "complete"
  # Gets a list of results, or the Text after each step; a Refusal if there is none. It is called on
  # the model's thread and must not block.
  deliver: Callable[[Any], None]
  texts: Sequence[Any] = ()  # to classify, embed or fill in
  text: Any = None  # the Text to continue
  dropped: bool = False  # whether the client has left

  @property
  def size(self) -> int:
    return max(1, len(self.texts))


class Engine(threading.Thread):
  """The thread that runs jobs; adapters: classifiers beside the model, by name."""

  def __init__(
    self, model: Model, weights: str = "float32", adapters: Mapping[str, Model] | None = None
  ):
    """weights: of texts that are continued or classified, one of decoding_weights.KINDS."""
    super().__init__(name="model", daemon=True)
    self.model, self.adapters = model, dict(adapters or {})
    # Why the model does not; "" if it does.
    self.generates = _reason(lambda: model.network.language_model())
    self.embeds = _reason(lambda: model.embedding)
    self.classifies = _reason(model.loaded.label_task)
    self.fills = _reason(lambda: model.masked_lm)
    # observe(kind, texts) is called for every batch, observe("tokens", n) for new tokens.
    self.observe: Callable[[str, int], None] = lambda kind, count: None
    self._classifier = model
    if not self.classifies and weights != "float32":
      # Beside the other one, whose states are embeddings.
      self._classifier = Model(model.loaded.with_weights(weights))
    self._stream: Any = None  # a Stream, if it generates
    if not self.generates:
      language = model.network.language_model()
      params = keep_weights(language, model.network.params, weights)
      self._stream = Stream(language, params, few_shapes=True)
    self._waiting: collections.deque[Job] = collections.deque()
    self._running: list[Job] = []  # texts that are being continued
    self._changed = threading.Condition()
    self._closed_at: float | None = None

  def warm_up(self) -> None:
    """Compiles what most requests need, on the caller's thread. Call it before `start`."""
    if not self.classifies:
      self._classifier.warm_up()
    for adapter in self.adapters.values():
      adapter.warm_up()
    if not self.embeds:
      for text in ("a", *(["a"] * count for count in (4, 16))):
        self.model.embed(text)
    if not self.fills:
      self._fill(["[MASK]"])
    if self._stream is not None:
      self._stream.warm_up()

  def submit(self, jobs: Sequence[Job]) -> None:
    """Queues all of the jobs; raises Refusal if the queue is full or the server stops."""
    size = sum(job.size for job in jobs)
    with self._changed:
      if self._closed_at is not None:
        raise _stopping()
      if self.waiting + size > MAX_QUEUE:
        message = f"{self.waiting} texts are waiting already, and the queue holds {MAX_QUEUE}"
        raise Refusal(f"{message}; try again soon", 503, retry_after=1)
      self._waiting.extend(jobs)
      self._changed.notify()

  def drop(self, jobs: Sequence[Job]) -> None:
    for job in jobs:
      job.dropped = True
    with self._changed:
      self._waiting = collections.deque(job for job in self._waiting if not job.dropped)

  @property
  def waiting(self) -> int:
    """Texts in the queue."""
    return sum(job.size for job in list(self._waiting))

  def close(self) -> None:
    """Refuses queued and new jobs; running ones have 2 seconds to end, as then the thread does."""
    with self._changed:
      if self._closed_at is None:
        self._closed_at = time.monotonic()
      refused, self._waiting = self._waiting, collections.deque()
      self._changed.notify()
    for job in refused:
      job.deliver(_stopping())

  def run(self) -> None:
    while (jobs := self._next_jobs()) is not None:
      calls: dict[str, Callable[[Any], Any]] = {
        "classify": self._classifier.classify,
        "embed": self.model.embed,
        "fill": self._fill,
        **{f"classify {name}": adapter.classify for name, adapter in self.adapters.items()},
      }
      for kind, call in calls.items():
        of_kind = [job for job in jobs if job.kind == kind]
        if of_kind:
          self._answer(kind, call, of_kind)
      if self._stream is not None:
        self._continue([job for job in jobs if job.kind == "complete"])

  def _fill(self, texts: Sequence[str]) -> list[Any]:
    """As many tokens at each mask as any request may ask for."""
    most = min(MAX_FILLINGS, self.model.network.tokenizer.vocab_size)
    return self.model.fill_mask(texts, most)

  def _next_jobs(self) -> list[Job] | None:
    """Waits for work and returns the next jobs; None when the engine is closed and idle."""
    with self._changed:
      while not self._waiting and not self._running:
        if self._closed_at is not None:
          return None
        self._changed.wait()
      until = time.monotonic() + (0 if self._running else _FILL)
      while self.waiting < _BATCH and (seconds := until - time.monotonic()) > 0:
        self._changed.wait(seconds)
      room = Stream.capacity - len(self._running)
      taken, left, sizes = [], [], collections.Counter[str]()
      for job in self._waiting:
        limit = room if job.kind == "complete" else _BATCH
        # A job larger than a batch is a batch of its own.
        if sizes[job.kind] and sizes[job.kind] + job.size > limit or not limit:
          left.append(job)
          sizes[job.kind] += limit  # jobs of a kind keep their order
        else:
          taken.append(job)
          sizes[job.kind] += job.size
      self._waiting = collections.deque(left)
      return taken

  def _answer(self, kind: str, call: Callable[[Any], Any], jobs: list[Job]) -> None:
    """Answers for the texts of all jobs together; if that fails, of each by itself."""
    texts = [text for job in jobs for text in job.texts]
    try:
      results = call(texts)
    except Exception as error:
      if len(jobs) == 1:
        jobs[0].deliver(_answerable(error))
        return
      for job in jobs:
        self._answer(kind, call, [job])
      return
    self.observe(kind, len(texts))
    first = 0
    for job in jobs:
      job.deliver(results[first : first + len(job.texts)])
      first += len(job.texts)

  def _continue(self, jobs: list[Job]) -> None:
    """Starts to continue the texts of these jobs, and adds a few tokens to every text."""
    for job in jobs:
      try:
        self._stream.add(job.text)
        self._running.append(job)
      except Exception as error:
        job.deliver(_answerable(error))
    self._leave()
    before = sum(len(text.added) for text in self._stream.texts)
    try:
      texts = self._stream.advance()
    except Exception as error:
      self._fail(_answerable(error))
      return
    if texts:
      self.observe("complete", len(texts))
      self.observe("tokens", sum(len(text.added) for text in texts) - before)
    for job in self._running:
      job.deliver(job.text)
    self._running = [job for job in self._running if not job.text.done]

  def _leave(self) -> None:
    """Removes the texts of clients that left, and all of them some time after `close`."""
    if self._closed_at is not None and time.monotonic() > self._closed_at + _GRACE:
      self._fail(_stopping())
    for job in self._running:
      if job.dropped:
        self._stream.remove(job.text)
    self._running = [job for job in self._running if not job.dropped]

  def _fail(self, error: Refusal) -> None:
    for job in self._running:
      job.deliver(error)
      self._stream.remove(job.text)
    self._running = []


def _reason(call: Callable[[], Any]) -> str:
  try:
    call()
  except InputError as error:
    return str(error)
  return ""


def _stopping() -> Refusal:
  return Refusal("the server is stopping", 503, retry_after=1)


def _answerable(error: Exception) -> Refusal:
  """The Refusal for the client; logs all but user errors."""
  if isinstance(error, InputError):
    return Refusal(str(error))
  logging.getLogger("gpt_jax.serve").error("a batch failed", exc_info=error)
  return Refusal("the model failed on this request; the server's log says why", 500)

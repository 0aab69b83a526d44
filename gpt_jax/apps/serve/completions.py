"""OpenAI's /v1/completions: from its request to texts that are continued, and to its responses."""

import dataclasses
import itertools
import secrets
import time
from typing import Any

from gpt_jax.apps.serve.fields import Fields, Refusal, check_text
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.inference.decoding import BEST
from gpt_jax.inference.generate import find_stop
from gpt_jax.inference.model import Model
from gpt_jax.inference.stream import Sampling, Text, check_fits

MAX_TEXTS = 16  # prompts x n of one request
_MAX_STOPS = 4


@dataclasses.dataclass(frozen=True)
class Request:
  texts: list[Text]  # n of each prompt
  characters: list[int]  # for each text, those of its prompt as the client wrote it
  read: int  # tokens of the prompts
  stop: list[str]  # texts before which a completion ends
  logprobs: int  # how many likely tokens to report with each token; -1: not even the token's own
  stream: bool
  usage: bool  # whether a stream ends with the numbers of tokens
  head: dict[str, Any]  # the first fields of each response

  def piece(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """An event of a stream."""
    usage = {"usage": None} if self.usage else {}  # the last event has it
    return {**self.head, "choices": choices, **usage}

  def whole(self, choices: list[dict[str, Any]], written: int) -> dict[str, Any]:
    """The response after `written` tokens, or with no choices the last event of a stream."""
    usage = {"prompt_tokens": self.read, "completion_tokens": written}
    usage["total_tokens"] = self.read + written
    return {**self.head, "choices": choices, "usage": usage}


def read_request(fields: Fields, model: Model, name: str) -> Request:
  """The request in a JSON object. Prompt i and choice j have the seed `seed` + i n + j, so that a
  list of prompts with n=1 gets the texts of Model.generate with this seed.
  """
  wanted = fields.take("model")
  if wanted is not None and wanted != name:
    raise Refusal(f"model: {wanted!r} is not here; this server has {name!r}", 404, "model")
  prompts = fields.strings("prompt", MAX_TEXTS)
  n = fields.integer("n", 1, 1, MAX_TEXTS)
  if len(prompts) * n > MAX_TEXTS:
    raise Refusal(f"n: {len(prompts)} prompts x {n} are more than {MAX_TEXTS} texts", param="n")
  context = model.network.spec.trunk.context
  sampling = Sampling(
    fields.integer("max_tokens", 16, 1, context),
    fields.number("temperature", 1.0, 0.0, 2.0),
    fields.integer("top_k", 0, 0, 10**9),
    fields.number("top_p", 1.0, 0.0, 1.0, above=True),
    fields.integer("seed", secrets.randbelow(2**31), 0, 2**31 - 1),
    fields.boolean("ignore_eos"),
  )
  stops = [] if fields.take("stop") in (None, []) else fields.strings("stop", _MAX_STOPS)
  logprobs = fields.integer("logprobs", -1, 0, BEST)
  stream = fields.boolean("stream")
  options = fields.take("stream_options")
  usage: Any = False
  if options is not None:
    usage = options.get("include_usage", False) if isinstance(options, dict) else None
    if not stream or not isinstance(usage, bool) or not set(options) <= {"include_usage"}:
      message = 'stream_options: should be {"include_usage": true}, with stream'
      raise Refusal(message, param="stream_options")
  # Fields of the protocol that are not implemented: clients send them with values that change
  # nothing, so those are taken.
  neutral = {"best_of": n, "echo": False, "suffix": "", "logit_bias": {}}
  neutral |= {"presence_penalty": 0, "frequency_penalty": 0}
  for field, value in neutral.items():
    fields.refuse_unless(field, value)
  # A label for OpenAI's monitoring, without effect on the texts.
  check_text("" if (user := fields.take("user")) is None else user, "user", "user")
  fields.refuse_others()
  ends = () if sampling.ignore_eos else model.network.ends
  texts: list[Text] = []
  characters: list[int] = []
  encoded = model.network.tokenizer.encode_many(prompts)
  for i, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
    try:
      check_fits(model.network.model, len(ids), sampling.max_tokens)
    except InputError as error:
      raise Refusal(f"prompt[{i}]: {error}", param="prompt") from error
    for _ in range(n):
      seeded = dataclasses.replace(sampling, seed=(sampling.seed + len(texts)) % 2**31)
      text = Text(ids.tolist(), seeded, logprobs >= 0, best=logprobs > 0, ends=ends)
      texts.append(text)
      characters.append(len(prompt))
  head: dict[str, Any] = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion"}
  head |= {"created": int(time.time()), "model": name}
  read, stop = sum(map(len, encoded)), [text for text in stops if text]
  return Request(texts, characters, read, stop, logprobs, stream, usage, head)


class Choice:
  """One completion while it is written."""

  def __init__(self, index: int, request: Request, tokenizer: Tokenizer):
    self.index, self.source = index, request.texts[index]
    self._tokenizer, self._request = tokenizer, request
    self._prompt = tokenizer.decode(self.source.prompt)
    self._sent, self._tokens_sent, self._characters_sent = "", 0, 0
    # Written so far, up to the one that completes a stop text; without the end token.
    self.tokens = 0
    self.finish: str | None = None  # "stop" or "length" once it is complete

  def update(self) -> dict[str, Any]:
    """The output since the last call, in OpenAI's form, until `finish` is set; without text that
    the next token may change, or that may begin a stop text.
    """
    # Taken once: the engine adds tokens meanwhile.
    added = self.source.added[:]
    ended = bool(added) and added[-1].id in self.source.ends
    available = len(added) - ended
    whole = self._decode(available)
    if find_stop(whole, self._request.stop) is not None:
      whole, self.finish = self._read_to_stop(), "stop"
    else:
      self.tokens = available
      if ended or available >= self.source.sampling.max_tokens:
        self.finish = "stop" if ended else "length"
      else:
        whole = whole[: len(whole) - _unsettled(whole, self._request.stop)]
    new = whole[len(self._sent) :]
    if not whole.startswith(self._sent):  # a tokenizer that changes what it wrote
      new = ""
    self._sent += new
    update = {"index": self.index, "text": new, "logprobs": self._log_probs()}
    return update | {"finish_reason": self.finish}

  def _read_to_stop(self) -> str:
    """The text before the stop text that is complete first; `tokens` is up to where it is.

    Token by token: the model may be several tokens ahead, depending on its load.
    """
    end = None
    while end is None:
      self.tokens += 1
      text = self._decode(self.tokens)
      end = find_stop(text, self._request.stop)
    return text[:end]

  def _decode(self, count: int) -> str:
    # With the prompt: some tokenizers write the first token of a text without its space.
    ids = [token.id for token in self.source.added[:count]]
    whole = self._tokenizer.decode([*self.source.prompt, *ids])
    if whole.startswith(self._prompt):
      return whole[len(self._prompt) :]
    return self._tokenizer.decode(ids)

  def _log_probs(self) -> dict[str, Any] | None:
    """The tokens of the text sent since the last call, with their log-probabilities.

    Joined they are the text: a token is what its id adds to it, which is nothing before the last
    byte of a character. Offsets count from the beginning of the prompt, as it was given.
    """
    if self._request.logprobs < 0:
      return None
    values: dict[str, Any] = {"tokens": [], "token_logprobs": [], "text_offset": []}
    best = []
    count = self.tokens
    while self.finish is None and count > self._tokens_sent and not self._is_sent(count):
      count -= 1
    for number in range(self._tokens_sent, count):
      is_last = self.finish is not None and number == self.tokens - 1
      begin = self._characters_sent
      # Without a last character that lacks bytes.
      end = max(len(self._decode(number + 1).rstrip("\ufffd")), begin)
      if begin >= len(self._sent) and end > begin:  # behind a stop text
        break
      end = len(self._sent) if is_last else min(end, len(self._sent))
      token = self.source.added[number]
      values["tokens"].append(self._sent[begin:end])
      values["token_logprobs"].append(token.log_prob)
      values["text_offset"].append(self._request.characters[self.index] + begin)
      # The token itself is always among them, as one more where it is not likely.
      likely = dict(token.best[: self._request.logprobs]) | {token.id: token.log_prob}
      best.append(self._spelled(number, likely))
      self._tokens_sent, self._characters_sent = number + 1, end
    return {**values, "top_logprobs": best if self._request.logprobs else None}

  def _is_sent(self, count: int) -> bool:
    """Whether the text of the first `count` tokens is sent, and the next one cannot change it."""
    text = self._decode(count)
    return len(text) <= len(self._sent) and not text.endswith("\ufffd")

  def _spelled(self, number: int, likely: dict[int, float]) -> dict[str, float]:
    """Likely tokens in place of token `number`, as text or, where that is none, by their piece."""
    ids = [token.id for token in self.source.added[:number]]
    before = self._tokenizer.decode([*self.source.prompt, *ids])
    spelled: dict[str, float] = {}
    for i, log_prob in likely.items():
      after = self._tokenizer.decode([*self.source.prompt, *ids, i])
      text = after[len(before) :] if after.startswith(before) else ""
      spelled[text if text and text not in spelled else self._tokenizer.piece(i)] = log_prob
    return spelled


def _unsettled(text: str, stops: list[str]) -> int:
  """Characters at the end of a text that may change or turn out to begin a stop text."""
  settled = text.rstrip("\ufffd")
  incomplete = len(text) - len(settled)  # bytes of a character to be completed
  longest = max((len(stop) for stop in stops), default=0)
  # A whole stop text would have ended the completion.
  for count in range(min(longest - 1, len(settled)), 0, -1):
    if any(stop.startswith(settled[-count:]) for stop in stops):
      return count + incomplete
  return incomplete


def join_pieces(pieces: list[dict[str, Any]]) -> dict[str, Any]:
  """The updates of a choice as one."""
  joined = {**pieces[-1], "text": "".join(piece["text"] for piece in pieces)}
  parts = [piece["logprobs"] for piece in pieces]
  if parts[-1] is not None:
    joined["logprobs"] = {}
    for name, value in parts[-1].items():
      lists = [part[name] for part in parts]
      chained = None if value is None else list(itertools.chain.from_iterable(lists))
      joined["logprobs"][name] = chained
  return joined

"""The page: values against independent computations, hostile texts, files, and a browser."""

import base64
import dataclasses
import functools
import html.parser
import json
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.apps.report import visualize
from gpt_jax.apps.report.visualize import attention_maps
from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.predictor import make_predictor
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import export, predict
from gpt_jax.tasks.packing import OrderedBatches
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.task import BuiltinTask

HOSTILE = (
  'the </script><b>cat</b> <!-- <script> &amp; "it\'s" 🙂 {{data}}\nsat\u2028on \u202ethe mat'
)
LONG = "the cat sat on the mat and " * 11
COLUMNS = {
  "stsb": ["the cat sat", "a dog ran to the barn"],
  "race-middle": "the cat sat on the mat.|where?|the mat|the old red barn|sea|the cat".split("|"),
}


@pytest.fixture(scope="module")
def model_of(make_run, tiny_tokenizer, tmp_path_factory):
  """model_of(name): a checkpoint with random parameters, a trunk's or that of a task of this
  package.
  """

  @functools.cache
  def make(name):
    sizes = {"vocab_size": tiny_tokenizer.vocab_size, "context": 160, "width": 16}
    trunk = TransformerConfig(**sizes, layers=2, heads=2)
    if name == "lstm":
      trunk = LSTMConfig(**sizes, units=16)
    folder = str(tmp_path_factory.mktemp("model") / name)
    if name in ("lstm", "transformer"):
      return make_run(folder, ModelConfig(trunk))
    task = BuiltinTask(name).build("")
    spec = ModelConfig(trunk, (ClassifyHead(task.num_classes, task.pooling),))
    return make_run(folder, spec, task=to_json(BuiltinTask(name)))

  return make


@pytest.fixture
def page(tmp_path):
  return tmp_path / "page.html"


@pytest.fixture
def visualized(model_of, page):
  """visualized(name, texts, source=""): the values in the page of a model."""
  return lambda name, *texts: visualize.run(model_of(name), str(page), *texts)


def data_of(page):
  text = page.read_text(encoding="utf-8")
  return json.loads(re.search(r'json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def shares(sequence, layers=2, heads=2):
  """[layers, H, T, T], decoded as in the page."""
  length = len(sequence["tokens"])
  packed = np.frombuffer(base64.b64decode(sequence["attention"]), np.uint8)
  packed = packed.reshape(layers, heads, -1)
  whole = np.zeros((layers, heads, length, length))
  whole[:, :, np.tri(length, dtype=bool)] = np.square(packed / 255)
  return whole


def token_scores(trunk, params, ids):
  """Logits [T, rows of the table] of a text by itself, padded, so that it compiles once."""
  padded = np.zeros((1, 160), np.int32)
  padded[0, : len(ids)] = ids
  return _token_scores(trunk, params, padded)[: len(ids)]


@functools.partial(jax.jit, static_argnums=0)
def _token_scores(trunk, params, ids):
  hidden, table, *_ = trunk.build().apply({"params": params}, Rows(ids, np.arange(160)[None]))
  return hidden[0] @ table.T


@pytest.mark.parametrize("trunk", ["transformer", "lstm"])
def test_token_probabilities_are_those_of_the_model(model_of, visualized, page, trunk):
  texts = ["the cat sat on the mat", "the", LONG.strip()]
  returned = visualized(trunk, texts)
  page_data = data_of(page)
  assert page_data == returned and [text["text"] for text in page_data["texts"]] == texts
  model = load_model(model_of(trunk))
  tokenizer = model.tokenizer
  for text, shown in zip(texts, page_data["texts"], strict=True):
    ids = tokenizer.encode(text)
    (sequence,) = shown["sequences"]
    assert sequence["tokens"] == tokenizer.processor.encode(text, out_type=str)
    assert shown["classes"] is None
    scores = np.asarray(token_scores(model.spec.trunk, model.params["trunk"], ids), np.float64)
    scores = scores[:, : tokenizer.vocab_size]
    distributions = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert (sequence["logp"][0], sequence["rank"][0], sequence["best"][0]) == (None, None, None)
    expected = [np.log(p[i]) for p, i in zip(distributions, ids[1:], strict=False)]
    np.testing.assert_allclose(np.array(sequence["logp"][1:], float), expected, atol=2e-4)
    for n in range(1, len(ids)):
      order = np.argsort(-distributions[n - 1])
      assert sequence["rank"][n] == order.tolist().index(ids[n]) + 1
      pieces, best = zip(*sequence["best"][n], strict=True)
      assert list(pieces) == list(map(tokenizer.processor.id_to_piece, order[:5].tolist()))
      np.testing.assert_allclose(best, distributions[n - 1][order[:5]], rtol=6e-3)
    if len(ids) == 1:
      assert sequence["mean"] is None and sequence["perplexity"] is None
    else:
      assert sequence["mean"] == pytest.approx(np.mean(expected), abs=1e-4)
      assert sequence["perplexity"] == pytest.approx(np.exp(-np.mean(expected)), rel=1e-4)


def test_attention_is_accurate_to_a_byte(model_of, visualized):
  (text,) = visualized("transformer", [LONG.strip()])["texts"]
  page_data = shares(text["sequences"][0])
  model = load_model(model_of("transformer"))
  ids = model.tokenizer.encode(LONG)
  # The program then goes by blocks of queries; at this odd length the next lines do not.
  assert len(ids) > 128
  positions = np.arange(len(ids), dtype=np.int32)[None]
  trunk = model.spec.trunk.build()

  @jax.jit
  def observe(params):
    return trunk.apply({"params": params}, Rows(ids[None], positions), mutable="intermediates")

  _, kept = observe(model.params["trunk"])
  np.testing.assert_allclose(page_data, attention_maps(kept["intermediates"])[:, 0], atol=0.004)


@pytest.mark.parametrize("place", ["lstm", "lstm/best", "lstm/checkpoints/7"])
def test_a_page_does_not_say_where_its_run_lies(model_of, page, place):
  folder = model_of("lstm").removesuffix("lstm")
  visualize.run(f"{folder}{place}", str(page), ["the cat"])
  shown = data_of(page)
  assert shown["model"]["checkpoint"] == place and folder not in page.read_text()
  assert shown["texts"][0]["sequences"][0]["attention"] is None  # an LSTM has none
  assert (shown["model"]["layers"], shown["model"]["heads"]) == (0, 0)


@pytest.mark.parametrize("name, count", [("cola", 1), ("rte", 1), ("stsb", 2), ("race-middle", 4)])
def test_label_probabilities_of_every_prefix(model_of, visualized, tmp_path, name, count):
  """Each prefix is predicted alone, from truncated ids; the full text agrees with predict."""
  columns = COLUMNS.get(name, ["the cat sat"] if name == "cola" else COLUMNS["stsb"])
  shown = visualized(name, ["the mat", "\t".join(columns)][len(columns) > 1 :])["texts"][-1]
  assert len(shown["sequences"]) == count
  model = load_model(model_of(name))
  task = BuiltinTask(name).build("")
  encoded = task.encode([task.example(Row(tuple(columns), None, ""))], model.tokenizer, 160)
  predict_alone = make_predictor(model.model, make_mesh(MeshConfig()))
  growing = columns[2:] if name == "race-middle" else columns[-1:]
  growing = [model.tokenizer.encode(text).tolist() for text in growing]
  expected = []
  for n in range(1, max(map(len, growing)) + 1):
    cut = [ids[:n] if ids.tolist() in growing else ids for ids in encoded.texts]
    lengths = np.array([len(ids) for ids in cut])
    prefix = dataclasses.replace(encoded, texts=cut, kept=lengths[encoded.fields])
    expected.append(predict_alone(model.params, prefix, 1, few_shapes=True)[0])
  assert shown["classes"]["labels"] == list(task.labels)
  np.testing.assert_allclose(shown["classes"]["probabilities"], expected, atol=2e-5)
  pieces = model.tokenizer.processor.encode(columns[-1], out_type=str)
  assert shown["classes"]["tokens"] == (None if name == "race-middle" else pieces)
  (tmp_path / "rows.jsonl").write_text(json.dumps(dict(zip(task.columns, columns, strict=True))))
  files = str(tmp_path / "rows.jsonl"), str(tmp_path / "labels.tsv")
  (result,) = predict.run(model_of(name), *files)
  expected = list(result["probabilities"].values())
  np.testing.assert_allclose(shown["classes"]["probabilities"][-1], expected, atol=2e-5)


def test_a_fine_tuned_model_is_scored_as_in_fine_tuning(model_of, visualized):
  """On the task's own sequences: the mean of their means is the auxiliary loss (eq. 5)."""
  (text,) = visualized("stsb", ["\t".join(COLUMNS["stsb"])])["texts"]
  first, second = (sequence["tokens"] for sequence in text["sequences"])
  assert (first[0], first[-1], second[0], second[-1]) == ("<start>", "<extract>") * 2
  middle = first.index("<delimiter>")
  assert second[1:-1] == first[middle + 1 : -1] + ["<delimiter>"] + first[1:middle]
  assert text["sequences"][0]["special"] == [0, middle, len(first) - 1]
  model, task = load_model(model_of("stsb")), BuiltinTask("stsb").build("")
  encoded = task.encode([task.example(Row(tuple(COLUMNS["stsb"]), None, ""))], model.tokenizer, 160)
  batch = next(iter(OrderedBatches(encoded, 1)))
  spec = ModelConfig(model.spec.trunk, (LanguageHead(), model.spec.head))
  measured = jax.jit(model_loss(spec.build()))(model.params, batch, None)[1]["lm_loss"]
  mean = np.mean([sequence["mean"] for sequence in text["sequences"]])
  assert mean == pytest.approx(-measured.value, abs=1e-4)


def test_texts_of_a_file_follow_those_of_the_flag(visualized, tmp_path):
  (tmp_path / "texts.txt").write_text("the dog\n\nthe barn\n")
  page_data = visualized("transformer", ["the cat"], str(tmp_path / "texts.txt"))
  assert [text["text"] for text in page_data["texts"]] == ["the cat", "the dog", "the barn"]
  (tmp_path / "rows.tsv").write_text("sentence2\tscore\tsentence1\nthe dog\t1\tthe barn\n")
  page_data = visualized("stsb", (), str(tmp_path / "rows.tsv"))
  assert [text["text"] for text in page_data["texts"]] == ["the barn | the dog"]


def test_a_task_truncates_as_in_fine_tuning_and_refuses_other_columns(visualized):
  told = "text 1: truncated to the context of 160, as in fine-tuning: 158 of"
  with pytest.warns(UserWarning, match=told):
    (text,) = visualized("cola", [LONG * 2])["texts"]
  assert text["note"].startswith("truncated to")
  assert len(text["sequences"][0]["tokens"]) == 160 and len(text["classes"]["probabilities"]) == 158
  told = "text 2: 1 column; the task stsb reads 2, separated by tabs: sentence1, sen"
  refused(told, visualized, "stsb", ["the cat\tthe dog", "the cat"])


def test_both_orders_of_a_pair_are_one_text(visualized, tiny_tokenizer):
  first, second = "the cat sat " * 30, "a dog ran " * 40
  with pytest.warns(
    UserWarning, match="truncated to the context of 160, as in fine-tuning"
  ) as told:
    visualized("stsb", [f"{first}\t{second}"])
  kept, total = map(int, re.findall(r"(\d+) of (\d+) tokens", str(told[0].message))[0])
  assert kept == 156 and total == sum(map(len, tiny_tokenizer.encode_many([first, second])))


def test_a_row_whose_last_column_is_empty_has_a_prefix(make_run, tiny_tokenizer, tmp_path):
  table = {
    "columns": ("subject", "body"),
    "label": "label",
    "labels": ("a", "b"),
    "transform": "entailment",
  }
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=32, layers=1, width=16, heads=2)
  spec = ModelConfig(trunk, (ClassifyHead(2, "sum"),))
  task = to_json(TableTask(**table))
  checkpoint = make_run(tmp_path / "run", spec, task=task)
  (text,) = visualize.run(checkpoint, str(tmp_path / "page.html"), ["the cat\t"])["texts"]
  assert len(text["classes"]["probabilities"]) == len(text["classes"]["tokens"]) == 1


class Tags(html.parser.HTMLParser):
  """All start tags of a page, and the text and attributes of the buttons in each strip of
  tokens.
  """

  def __init__(self, text):
    super().__init__()
    self.tags, self.strips, self.open, self.root, self.texts = [], {}, None, {}, {}
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    attributes = dict(attributes)
    self.tags.append((tag, attributes.get("id")))
    if tag == "html":
      self.root = attributes
    if "id" in attributes:
      self.open = attributes["id"]
    if tag == "button" and "data-token" in attributes:
      self.strips.setdefault(self.open, []).append([attributes, ""])

  def handle_data(self, data):
    self.texts[self.open] = self.texts.get(self.open, "") + data
    if self.lasttag in ("button", "i") and self.open in self.strips:  # not the small percentages
      self.strips[self.open][-1][1] += data


def test_the_page_of_a_run_is_in_its_folder(model_of, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run, exported = shutil.copytree(model_of("transformer"), tmp_path / "run"), tmp_path / "exported"
  visualize.run(f"{run}/checkpoints/7", texts=["the cat"])
  export.run(str(run), str(exported))
  visualize.run(str(exported), texts=["the dog"])
  texts = [data_of(folder / "page.html")["texts"][0]["text"] for folder in (run, tmp_path)]
  assert texts == ["the cat", "the dog"] and not (exported / "page.html").exists()


def test_html_in_a_text_stays_text(model_of, visualized, page, tmp_path):
  plain = tmp_path / "plain.html"
  visualized("transformer", [HOSTILE])
  visualize.run(model_of("transformer"), str(plain), ["the cat"])
  assert data_of(page)["texts"][0]["text"] == HOSTILE
  assert Tags(page.read_text()).tags == Tags(plain.read_text()).tags
  fetched = r"https?://(?!www\.w3\.org)|\bsrc=|@import|\burl\("
  assert not re.search(fetched, page.read_text())


def test_only_a_page_is_replaced(model_of, visualized, page, tmp_path, monkeypatch):
  other = tmp_path / "other.html"
  visualized("transformer", ["the cat"])
  visualized("transformer", ["the dog"])
  assert [text["text"] for text in data_of(page)["texts"]] == ["the dog"]
  other.write_text("<!doctype html><title>mine</title>")
  before = page.read_text()

  def interrupt(*_):
    raise SystemExit

  monkeypatch.setattr(visualize, "read", interrupt)
  message = "other.html already exists and is not a page of this prog"  # before computing
  refused(message, visualize.run, model_of("transformer"), str(other), ["the cat"])
  with pytest.raises(SystemExit):
    visualized("transformer", ["the cat"])
  assert page.read_text() == before and other.read_text() == "<!doctype html><title>mine</title>"
  assert sorted(path.name for path in tmp_path.iterdir()) == ["other.html", "page.html"]


# In a real browser.


@pytest.fixture(scope="module")
def render(tmp_path_factory, browser):
  """render(page, fragment="") -> the page in a browser, after its script has run without error."""
  profile = tmp_path_factory.mktemp("profile")

  def show(page, fragment="", dark=False):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    flags += [f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={1 - dark}"]
    command = [browser, *flags, "--dump-dom", f"{page.as_uri()}#{fragment}"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    shown = Tags(done.stdout.decode())
    assert shown.root.get("data-ready") == "yes" and "data-error" not in shown.root, shown.root
    return shown

  return show


def joined(tokens):
  """The tokens as shown: the visible character of HOSTILE in place of its bytes."""
  begin, spelled = tokens.index("<0xF0>"), [f"<0x{byte:02X}>" for byte in "🙂".encode()]
  assert tokens[begin : begin + 4] == spelled
  return [*tokens[:begin], "🙂", "·", "·", "·", *tokens[begin + 4 :]]


def percent(share):
  """A share of at least 10 % in the page's format."""
  return f"{round(100 * share)}\u00a0%"


def shown_share(share, masked):
  """How the label of a token that is looked at ends."""
  return "to the right, masked" if masked else percent(share) if share >= 0.1 else "%"


def test_a_browser_shows_tokens_and_the_selected_head(visualized, page, render):
  page_data = visualized("transformer", ["the dog", HOSTILE])
  (sequence,) = page_data["texts"][1]["sequences"]
  token = 6
  seen = {}
  for layer, head in ((0, 0), (1, 0), (1, 1)):
    shown = render(page, f"text=1&layer={layer}&head={head}&token={token}")
    assert [text for _, text in shown.strips["likelihood"]] == joined(sequence["tokens"])
    labels = [attributes["aria-label"] for attributes, _ in shown.strips["looks"]]
    share = shares(sequence)[layer, head, token]
    for j, label in enumerate(labels):
      assert label.startswith(f"{sequence['tokens'][j]}: ")
      assert label.endswith(shown_share(share[j], j > token))
    classes = [attributes.get("class", "") for attributes, _ in shown.strips["looks"]]
    assert [j for j, name in enumerate(classes) if "chosen" in name] == [token]
    seen[layer, head] = labels
  assert len({tuple(labels) for labels in seen.values()}) == 3
  names = [attributes["aria-label"] for attributes, _ in shown.strips["likelihood"]]
  assert names[0].endswith("not scored: no left context")
  assert f"log-probability −{-sequence['logp'][1]:.3f};" in names[1]
  assert f"rank {sequence['rank'][1]};" in names[1]
  assert shown.texts["numbers"].startswith(f"Token {token}: {sequence['tokens'][token]}")


def test_clicks_change_the_selection_and_hovering_does_not(visualized, page, tmp_path, render):
  """The URL fragment follows clicks and keys, but not the pointer."""
  acted = tmp_path / "acted.html"
  page_data = visualized("transformer", ["the dog", "the cat sat on the mat"])
  acts = """<script>
    const choice = document.getElementById("texts"), root = document.documentElement;
    choice.value = "1 0";
    choice.onchange({target: choice});
    const send = (element, type) => element.dispatchEvent(new Event(type, {bubbles: true}));
    send(document.querySelector("#heads button:nth-of-type(4) canvas"), "click");
    const [, , , fourth, fifth] = document.querySelectorAll("#looks button");
    fourth.click();
    fourth.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
    root.dataset.address = location.hash;
    root.dataset.focus = document.activeElement === fifth;
    send(document.querySelectorAll("#likelihood button")[2], "pointerover");
    root.dataset.after = location.hash;
  </script></body>"""
  acted.write_text(page.read_text().replace("</body>", acts))
  shown = render(acted)
  address = "#text=1&sequence=0&layer=1&head=1&token=4"
  acted = [shown.root[f"data-{name}"] for name in ("address", "after", "focus")]
  assert acted == [address, address, "true"]
  (sequence,) = page_data["texts"][1]["sequences"]
  assert shown.texts["numbers"].startswith(f"Token 2: {sequence['tokens'][2]}")
  labels = [attributes["aria-label"] for attributes, _ in shown.strips["looks"]]
  for j, share in enumerate(shares(sequence)[1, 1, 2]):
    assert labels[j].endswith(shown_share(share, j > 2))


def test_bytes_are_named_with_their_character(visualized, page, tmp_path, render):
  """Bytes that are cut off, which make no character, stay as they are."""
  cut = tmp_path / "cut.html"
  visualized("transformer", ["the 🙂"])
  names = [attributes["aria-label"] for attributes, _ in render(page).strips["likelihood"]]
  assert names[-1].startswith("<0x82>, byte 4 of 4 of 🙂: log-probability")
  cut.write_text(page.read_text().replace(r"\u003c0x82>", "<0xF0>"))
  assert [text for _, text in render(cut).strips["likelihood"]][-2:] == ["<0x99>", "<0xF0>"]


def test_a_dark_page_is_dark(visualized, page, tmp_path, render):
  """In both color schemes ink and paper of a token differ, and a masked pixel is not white."""
  asked = tmp_path / "asked.html"
  visualized("transformer", ["the cat sat on the mat"])
  script = """<script>
    const look = id => getComputedStyle(document.querySelector(id));
    const pen = document.querySelector("#heads canvas").getContext("2d");
    const token = look("#likelihood button:nth-of-type(2)");
    Object.assign(document.documentElement.dataset, {
      page: look("body").backgroundColor, pixel: pen.getImageData(119, 0, 1, 1).data[0],
      ink: token.color, paper: token.backgroundColor});
  </script></body>"""
  asked.write_text(page.read_text().replace("</body>", script))
  for dark in (False, True):
    seen = render(asked, dark=dark).root
    colors = [re.findall(r"\d+", seen[f"data-{name}"])[:3] for name in ("page", "ink", "paper")]
    around, ink, paper = (sum(map(int, color)) for color in colors)
    assert (around < 120) == dark and (int(seen["data-pixel"]) < 50) == dark
    assert abs(ink - paper) > 250


def test_a_browser_shows_labels(finetuned, page, render):
  texts = ["the cat sat", "the dog on the mat"]
  page_data = visualize.run(f"{finetuned.workdir}/seed_0", str(page), texts)
  classes = page_data["texts"][1]["classes"]
  shown = render(page, "text=1&layer=99&head=x")  # out of range: ignored
  best = max(zip(classes["probabilities"][-1], classes["labels"], strict=True))
  told = f"tokens, up to {classes['tokens'][-1]}: {best[1]}: {percent(best[0])}"
  assert told in shown.texts["point"]
  assert [tag for tag, _ in shown.tags].count("polyline") == 2
  assert f"fine-tuned on {page_data['model']['task']}" in shown.texts["about"]


def test_a_browser_shows_an_lstm(visualized, page, render):
  visualized("lstm", ["the cat sat"])
  shown = render(page, "layer=1")
  assert "looks" not in shown.strips and shown.strips["likelihood"][0][1] == "▁the"

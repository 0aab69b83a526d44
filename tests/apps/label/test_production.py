"""The commands of production.md, as they stand there: a toy checkpoint in place of MiniLM."""

import csv
import importlib.util
import itertools
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import launch

from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "gpt_jax" / "apps" / "label" / "production.md"
TOPICS = {"billing": "the red barn", "login": "the old cat", "bug": "the mat", "sales": "the sea"}


def commands():
  """The words of each command of the page."""
  blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
  lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
  return [words for line in lines if (words := shlex.split(line, comments=True))]


def write_tickets(path, count, queues):
  path.parent.mkdir(exist_ok=True)
  rng = random.Random(str(path.name))
  with path.open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["id", "subject", "body", "queue", "language"])
    for number, queue in zip(range(count), itertools.cycle(queues), strict=False):
      words = rng.sample("sat on by ran to was house dog tree sold twice again".split(), 6)
      subject = "" if number == 5 else f"{TOPICS[queue]} {words[0]} {number}"
      body = "" if number == 6 else f"{TOPICS[queue]} {' '.join(words)}"
      writer.writerow([number, subject, body, queue, rng.choice(["en", "de"])])


@pytest.fixture
def here(tmp_path, monkeypatch):
  """The folder in which somebody works, with the tables that the page names."""
  queues = list(TOPICS)
  for name in ("tickets.csv", "corrected.csv"):
    write_tickets(tmp_path / name, 180, queues[:3])
  write_tickets(tmp_path / "new.csv", 20, queues[:3])
  write_tickets(tmp_path / "later" / "test.csv", 40, queues[:3])
  write_tickets(tmp_path / "week_2.csv", 120, queues)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_the_page_is_short():
  assert len(PAGE.read_text().splitlines()) <= 80


def test_every_command_of_the_page(here, make_run, tiny_tokenizer):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=64, layers=1, width=32, heads=2)
  encoder = make_run(here / "encoder", ModelConfig(trunk))
  told = {}
  for words in commands():
    if words[0] in ("pip", "curl"):
      continue
    program, arguments = Path(words[1]).stem, words[2:]
    if program == "export" and not importlib.util.find_spec("jax2onnx"):
      continue
    if program == "serve":
      (request,) = [words for words in commands() if words[0] == "curl"]
      told["serve"] = ask_server([word for word in words if "--port" not in word], request)
      continue
    # Few rows, and a model that hardly learns, promise little.
    smaller = {"=minilm": f"={encoder}", "precision=0.95": "precision=0.1"}
    for word, small in smaller.items():
      arguments = [argument.replace(word, small) for argument in arguments]
    if program == "label":
      arguments += ["--epochs=2", "--skip_finetuning=false"]
    code, out, err = launch(program, *arguments)
    assert code == 0, (words, err)
    told[program] = out + err
  assert (here / "runs/tickets/report.html").exists()
  with open(here / "runs/tickets/suspects.csv", newline="") as file:
    assert {"row", "line", "given", "suggested"} <= {*next(csv.DictReader(file))}
  with open(here / "labels.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  assert [row["id"] for row in rows] == [str(number) for number in range(20)]
  # A ticket without a subject, or without a body, is read by the other one.
  assert all("empty" not in row["problem"] for row in rows)
  assert "drift" in told["predict"]
  assert re.search(r"\ben\b", told["evaluate"]) and re.search(r"\bde\b", told["evaluate"])
  assert '"label"' in told["serve"]
  assert "sales" in (here / "runs/week_2/report.html").read_text()


def ask_server(words, request):
  """What the page's curl prints, of a server at any free port."""
  flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
  command = [sys.executable, ROOT / words[1], *words[2:], "--port=0"]
  environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
  server = subprocess.Popen(command, env=environment, **pipes)
  try:
    lines = iter(server.stdout.readline, "")
    ready = next(line for line in lines if "ready" in line)
    port = re.search(r":(\d+)/", ready)[1]
    asked = [word.replace(":8000/", f":{port}/") for word in request]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout
  finally:
    server.kill()
    server.communicate()

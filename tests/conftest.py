"""What every test runs under: 8 simulated CPU devices, no network, strict broadcasting, our own
warnings as errors.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import uuid
from importlib.metadata import version
from pathlib import Path

import pytest
from stores import gcs_server, s3_server

ROOT = Path(__file__).parents[1]

# JAX reads these when it is imported; programs that a test starts inherit them.
os.environ["JAX_PLATFORMS"] = "cpu"
# Tiny models: compiling takes longer than running, and half as long without LLVM's optimizations.
# The notebooks' tests and launch/quickstart.sh run what users run.
xla_flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):
  xla_flags += " --xla_cpu_use_fusion_emitters=false"  # later versions refuse the flag
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla_flags}".strip()
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# On few cores, two programs with collectives in flight at once can wait for each other's simulated
# devices for ever.
os.environ["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "false"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".cache" / "jax")
os.environ["XDG_CACHE_HOME"] = str(ROOT / ".cache" / "home")  # of programs that ignore the above
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"


if (
  signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # of a suite in the background; programs that a test starts
  signal.signal(signal.SIGINT, signal.default_int_handler)  # would ignore Ctrl-C too


def pytest_addoption(parser):
  parser.addoption(
    "--budget", type=float, default=1.0, help="how many times as many attempts tests/attack makes"
  )
  parser.addoption(
    "--stores",
    action="store_true",
    help="run the tests on emulated gs:// and s3:// servers, and no others",
  )


def pytest_terminal_summary(terminalreporter):
  """The table of tests/attack: attempts and failures of each kind."""
  rows: dict[str, list[int]] = {}
  reports = [report for reports in terminalreporter.stats.values() for report in reports]
  for report in reports:
    for name, value in getattr(report, "user_properties", ()):
      if name == "attack" and report.when == "call":
        kind, attempts, failures = value
        row = rows.setdefault(kind, [0, 0])
        row[0], row[1] = row[0] + attempts, row[1] + failures
  if rows:
    terminalreporter.section("attacks")
    terminalreporter.write_line(f"{'':44}{'attempts':>10}{'failures':>10}")
    for kind, (attempts, failures) in sorted(rows.items()):
      terminalreporter.write_line(f"{kind:44}{attempts:>10,}{failures:>10,}")


def pytest_configure(config):
  config.addinivalue_line("markers", "parity: compares with torch or transformers (extra 'parity')")
  config.addinivalue_line(
    "markers", "released: encodes with OpenAI's vocabularies (extra 'released')"
  )
  config.addinivalue_line("markers", "harness: runs lm-evaluation-harness (extra 'lm-eval')")
  config.addinivalue_line("markers", "onnx: exports to ONNX and runs it (extra 'onnx')")
  config.addinivalue_line("markers", "slow: takes more than 30 seconds on two cores")
  # Warnings raised in the package and in launch/ are errors; other libraries' differ from version
  # to version.
  config.addinivalue_line("filterwarnings", r"error:::gpt_jax(\..*)?")
  config.addinivalue_line("filterwarnings", "error:::command_line")
  config.addinivalue_line("filterwarnings", "error::pytest.PytestUnknownMarkWarning")


def pytest_collection_modifyitems(config, items):
  """Files with slow tests run first, so that the workers of pytest -n 2 finish together.

  Tests on stores have runs of their own: after thousands of others in one process, gcsfs has been
  seen to wait for ever.
  """
  slow = {item.path for item in items if item.get_closest_marker("slow")}
  items.sort(key=lambda item: item.path not in slow)
  wanted = config.getoption("--stores")
  others = [item for item in items if _is_on_a_store(item) != wanted]
  config.hook.pytest_deselected(items=others)
  items[:] = [item for item in items if _is_on_a_store(item) == wanted]


def _is_on_a_store(item) -> bool:
  values = item.callspec.params.values() if hasattr(item, "callspec") else ()
  names = {value for value in values if isinstance(value, str)}
  return "stores" in item.fixturenames or bool(names & {"gs", "s3"})


def pytest_runtest_setup(item):
  if item.get_closest_marker("parity") and not importlib.util.find_spec("torch"):
    pytest.skip("needs the extra 'parity': pip install torch==2.13.0, then -e .[parity]")
  if item.get_closest_marker("released") and not all(
    map(importlib.util.find_spec, ("ftfy", "spacy", "tokenizers"))
  ):
    pytest.skip("needs the extra 'released': pip install -e .[released]")
  if item.get_closest_marker("onnx") and not importlib.util.find_spec("jax2onnx"):
    pytest.skip("needs the extra 'onnx': pip install -e .[onnx]")
  if item.get_closest_marker("harness") and not importlib.util.find_spec("lm_eval"):
    pytest.skip("needs the extra 'lm-eval': pip install -e .[lm-eval]")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  """Lets sockets reach this machine only."""
  connect = socket.socket.connect

  def local_only(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in (
      "127.0.0.1",
      "::1",
      "localhost",
    ):
      raise AssertionError(f"a test tried to reach the network: {address}")
    return connect(self, address)

  monkeypatch.setattr(socket.socket, "connect", local_only)
  monkeypatch.setattr(socket.socket, "connect_ex", local_only)


@pytest.fixture(scope="session")
def stores():
  """Servers for gs:// and s3://, and the environment in which clients find them."""
  with contextlib.ExitStack() as running:
    environment = running.enter_context(gcs_server()) | running.enter_context(s3_server())
    os.environ.update(environment)
    import fsspec.config
    import s3fs

    fsspec.config.set_conf_env(fsspec.config.conf)
    s3fs.S3FileSystem().mkdir("bucket")
    yield environment
    for name in environment:
      os.environ.pop(name, None)


@pytest.fixture
def gs(stores) -> str:
  """The URL of an empty folder in a bucket of an emulated Google Cloud Storage."""
  return f"gs://bucket/{uuid.uuid4().hex}"


@pytest.fixture
def s3(stores) -> str:
  """The URL of an empty folder in a bucket of an emulated S3."""
  return f"s3://bucket/{uuid.uuid4().hex}"


@pytest.fixture(params=["gs", "s3"])
def store(request) -> str:
  """The URL of an empty folder on each store."""
  return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def data_root() -> Path:
  """The folder of real corpora and tasks, for the tests that read them: $GPT_JAX_DATA, or
  ../shared/data.
  """
  root = Path(os.environ.get("GPT_JAX_DATA", ROOT.parent / "shared" / "data"))
  if not root.is_dir():
    pytest.skip(f"no real data: set GPT_JAX_DATA to its folder ({root} is none)")
  return root


@pytest.fixture(scope="session")
def browser() -> str:
  """The path of a browser that runs without a screen."""
  names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
  path = next(filter(None, map(shutil.which, names)), None)
  if path is None:
    pytest.skip(f"no browser: none of {', '.join(names)} is installed")
  return path


@pytest.fixture(scope="session")
def tiny_tokenizer():
  """A vocabulary of a few hundred pieces."""
  from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer

  return SentencePieceTokenizer.train(
    ["the cat sat on the mat and the dog ran to the old red barn by the sea"] * 3, 290
  )


@pytest.fixture(scope="session")
def openai_tokenizer():
  """A vocabulary of the kind that OpenAI released with GPT-1: letters and one word."""
  from gpt_jax.data.tokenizers.gpt1 import GPT1Tokenizer

  letters = "abcdefghijklmnopqrstuvwxyz.,"
  singles = [*letters, *(letter + "</w>" for letter in letters)]
  return GPT1Tokenizer(
    ("<unk>", *singles, "th", "the</w>", "\n</w>"), (("t", "h"), ("th", "e</w>"))
  )


@pytest.fixture(scope="session")
def write_release():
  """write_release(folder, tokenizer, shapes, cuts=None): what OpenAI's folder holds, of random
  numbers.

  Returns the vector of all of them. cuts: where the pieces end, in place of ten equal ones.
  write_release.shapes(vocab_size, …): the shapes of a model, as OpenAI's file lists them.
  """
  import json
  import math

  import numpy as np

  def write(folder, tokenizer, shapes, cuts=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer.files.items():
      (folder / name).write_bytes(content)
    (folder / "params_shapes.json").write_text(json.dumps(shapes))
    vector = (
      np.random.default_rng(0).normal(size=sum(map(math.prod, shapes))).astype(np.float32) / 4
    )
    for i, piece in enumerate(
      np.array_split(vector, 10) if cuts is None else np.split(vector, cuts)
    ):
      np.save(folder / f"params_{i}.npy", piece)
    return vector

  def shapes(vocab_size, context=16, width=24, blocks=2):
    d = width
    block = [
      [1, d, 3 * d],
      [3 * d],
      [1, d, d],
      [d],
      [d],
      [d],
      [1, d, 4 * d],
      [4 * d],
      [1, 4 * d, d],
      [d],
      [d],
      [d],
    ]
    return [[context, d], [vocab_size, d], *(block * blocks)]

  write.shapes = shapes
  return write


@pytest.fixture(scope="session")
def release(tmp_path_factory, write_release, openai_tokenizer):
  """A model as OpenAI released its own: folder, vector, shapes."""
  from types import SimpleNamespace

  folder = tmp_path_factory.mktemp("openai") / "model"
  shapes = write_release.shapes(openai_tokenizer.vocab_size)
  return SimpleNamespace(
    folder=folder, vector=write_release(folder, openai_tokenizer, shapes), shapes=shapes
  )


@pytest.fixture
def spacy_there(monkeypatch, tmp_path_factory):
  """spaCy, or where it is not installed something of its name, which does for all but finding
  words.
  """
  if not importlib.util.find_spec("spacy"):
    folder = tmp_path_factory.mktemp("packages")
    (folder / "spacy.py").touch()
    (folder / "spacy-3.8.0.dist-info").mkdir()
    (folder / "spacy-3.8.0.dist-info" / "METADATA").write_text("Name: spacy\nVersion: 3.8.0\n")
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, tiny_tokenizer):
  """A folder as prepare writes it: 60 and 7 short documents of sentences that follow a pattern."""
  import random

  from gpt_jax.data.token_file import TokenWriter

  folder, rng = tmp_path_factory.mktemp("prepared"), random.Random(0)

  def clause():
    who = rng.choice(("cat sat on", "dog ran to"))
    return f"the {who} the {rng.choice(('mat', 'old red barn', 'sea'))}"

  tiny_tokenizer.save(str(folder / "tokenizer"))
  for split, count in (("train", 60), ("valid", 7)):
    writer = TokenWriter(str(folder), split, tiny_tokenizer.vocab_size)
    for _ in range(count):
      text = " and ".join(clause() for _ in range(rng.randint(2, 9)))
      writer.add(tiny_tokenizer.encode(text), len(text.encode()), len(text.split()))
    writer.close(tokenizer_hash=tiny_tokenizer.hash)
  return str(folder)


@pytest.fixture(scope="session")
def make_run(tiny_tokenizer):
  """make_run(workdir, spec, steps=(7,), tokenizer=tiny_tokenizer, **meta): the folder of a run with
  random parameters, norms and biases among them.

  `meta` is recorded beside them. The parameters of step s are make_run.params_of(spec, s); the
  smallest step is the best.
  """
  import jax
  import numpy as np

  from gpt_jax.batch import Batch, Labels, Predictions, Rows
  from gpt_jax.checkpoints.run_folder import claim
  from gpt_jax.checkpoints.store import Checkpoints
  from gpt_jax.config import to_json
  from gpt_jax.data.windows import WindowsConfig
  from gpt_jax.models.model import ModelConfig
  from gpt_jax.objectives.causal import Causal
  from gpt_jax.objectives.span_corruption import SpanCorruption
  from gpt_jax.programs.pretrain import PretrainConfig

  def params_of(spec, seed):
    ids = np.zeros((1, 4), np.int32)
    labels = Labels(
      np.zeros((1, 1), np.int32), np.zeros((1, 2), np.float32), np.ones(1, np.float32)
    )
    source = Rows(ids, ids) if spec.trunk.reads_source else None
    predictions = Predictions(ids, np.zeros((1, 4), np.float32), ids)
    batch = Batch(Rows(ids, ids), predictions=predictions, labels=labels, source=source)
    shapes = jax.eval_shape(spec.build().init, jax.random.key(0), batch)["params"]
    rng = np.random.default_rng(seed)

    def draw(path, x):
      return np.asarray((path[-1].key == "scale") + 0.1 * rng.normal(size=x.shape), np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)

  def make(workdir, spec: ModelConfig, steps=(7,), tokenizer=tiny_tokenizer, **meta):
    source = spec.trunk.reads_source
    objective = SpanCorruption("encoder_decoder") if source else Causal()
    config = PretrainConfig(
      spec.trunk, objective, WindowsConfig(batch_size=2, length=spec.trunk.context)
    )
    claim(str(workdir), config, tokenizer, {})
    meta = {
      "model": to_json(spec),
      "config": to_json(config),
      "tokenizer_hash": tokenizer.hash,
      **meta,
    }
    with Checkpoints(str(workdir), metric="valid_loss", mode="min") as checkpoints:
      for step in steps:
        checkpoints.save(step, {"params": params_of(spec, step)}, meta, {"valid_loss": float(step)})
    return str(workdir)

  make.params_of = params_of
  return make


@pytest.fixture(scope="session")
def tempered(finetuned, tmp_path_factory):
  """The best checkpoint of a copy of a fine-tuned run whose temperature is 1.7."""
  import shutil

  from gpt_jax.files import read_json, with_checksum, write_json

  folder = str(tmp_path_factory.mktemp("tempered") / "run")
  shutil.copytree(f"{finetuned.workdir}/seed_1", folder)
  report = read_json(f"{folder}/dev_report.json")
  del report["checksum"]
  report["calibration"]["temperature"] = 1.7
  write_json(f"{folder}/dev_report.json", with_checksum(report))
  return f"{folder}/best"


@pytest.fixture(scope="session")
def model_of(make_run, finetuned, tmp_path_factory):
  """model_of(task name): a checkpoint of a task of this package, with random parameters."""
  from gpt_jax.checkpoints.load import load_model
  from gpt_jax.checkpoints.store import Checkpoints
  from gpt_jax.config import to_json
  from gpt_jax.models.heads.classify import ClassifyHead
  from gpt_jax.models.model import ModelConfig
  from gpt_jax.tasks.task import BuiltinTask

  trunk = load_model(finetuned.pretrained).spec.trunk

  def make(name):
    task = BuiltinTask(name).build("")
    spec = ModelConfig(trunk, (ClassifyHead(task.num_classes, task.pooling),))
    folder = make_run(tmp_path_factory.mktemp("model") / name, spec)
    meta = {**load_model(folder).meta, "task": to_json(BuiltinTask(name))}
    with Checkpoints(folder, metric="valid_loss", mode="min") as checkpoints:
      checkpoints.save(8, {"params": make_run.params_of(spec, 0)}, meta)
    return folder

  return make


@pytest.fixture(scope="session")
def finetuned(tmp_path_factory, make_run, tiny_tokenizer):
  """A task that a tiny model learns (which animal occurs in the words), fine-tuned with two seeds.

  Attributes: data_dir (train.tsv, dev.tsv), pretrained, config, workdir (seed_0, seed_1), results.
  """
  import random
  from types import SimpleNamespace

  from gpt_jax.models.model import ModelConfig
  from gpt_jax.models.transformer import TransformerConfig
  from gpt_jax.programs import finetune
  from gpt_jax.tasks.table import TableTask
  from gpt_jax.training.loop import TrainConfig
  from gpt_jax.training.optimizer import OptimConfig

  folder, rng = tmp_path_factory.mktemp("finetuned"), random.Random(0)

  def row():
    animal, words = (
      rng.choice(("cat", "dog")),
      rng.choices("the sat on mat and ran to old barn".split(), k=3),
    )
    words.insert(rng.randrange(4), animal)
    return f"{' '.join(words)}\t{ {'cat': 'meows', 'dog': 'barks'}[animal] }"

  for split, count in (("train", 128), ("dev", 30)):
    (folder / f"{split}.tsv").write_text(
      "\n".join(["text\tlabel", *(row() for _ in range(count))]) + "\n"
    )
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=64, layers=1, width=32, heads=2)
  config = finetune.FinetuneConfig(
    task=TableTask(),
    batch_size=16,
    lm_weight=0.2,
    optim=OptimConfig(learning_rate=0.01, schedule="linear", warmup_steps=4),
    train=TrainConfig(epochs=6, log_every=8, keep_checkpoints=1),
  )
  pretrained = make_run(folder / "pretrained", ModelConfig(trunk))
  workdir = str(folder / "run")
  results = finetune.run(config, str(folder), pretrained, workdir, seeds=2)
  return SimpleNamespace(
    data_dir=str(folder), pretrained=pretrained, config=config, workdir=workdir, results=results
  )

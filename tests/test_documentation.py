"""The documentation names files, programs, flags and config fields that exist."""

import os
import re
import shlex
from pathlib import Path

import pytest
from in_process import check_command, programs

from gpt_jax.programs.config_files import load_config

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", ".github/CONTRIBUTING.md", "configs/RESULTS.md"] + sorted(
  str(path.relative_to(ROOT)) for path in (ROOT / "gpt_jax").rglob("*.md")
)
FOLDERS = "gpt_jax|launch|configs|tests|.github|.ci"


def text_of(page: str, root: Path = ROOT) -> str:
  return (root / page).read_text(encoding="utf-8")


def named_paths(text: str) -> set[str]:
  """Paths like gpt_jax/config.py, without <placeholder> and the "mine" that a playbook makes."""
  paths = re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./<>*-]*", text)
  return {path.rstrip(".") for path in paths if not set(path) & set("<>*") and "mine" not in path}


def links(text: str) -> set[str]:
  """Relative targets of Markdown links."""
  targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
  return {target for target in targets if "://" not in target}


def shell_lines(text: str) -> list[list[str]]:
  """The words of the lines of all bash blocks, with the variables that they set."""
  blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
  script = "\n".join(blocks).replace("\\\n", " ")
  script = re.sub(r'"[^"\n]*\n[^"\n]*"', lambda quoted: quoted[0].replace("\n", " "), script)
  variables: dict[str, str] = {}
  lines = []
  for line in script.splitlines():
    line = re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[0]), line)
    if set_here := re.fullmatch(r'(\w+)="(.*)"', line):
      variables[set_here[1]] = set_here[2]
    lines.append(shlex.split(line, comments=True))
  return [words for words in lines if words]


def commands(text: str) -> list[list[str]]:
  """(launch/NAME.py, arguments) of every command: in a bash block, or in the text between `."""
  in_text = re.findall(r"`(?:python )?(launch/\w+\.py [^`]*)`", text)
  lines = [shlex.split(words) for words in in_text]
  for words in shell_lines(text):
    # A launcher's own options stand before the program that it starts.
    if words[0] == "bash" and "cluster/" in words[1]:
      started = [n for n, word in enumerate(words) if word in programs()]
      words = [f"launch/{words[started[0]]}.py", *words[started[0] + 1 :]] if started else []
    elif words[0].startswith("gpt-jax-"):
      name = words[0].removeprefix("gpt-jax-").replace("-", "_")
      words = [f"launch/{name}.py", *words[1:]]
    lines.append(words[1:] if words[:1] == ["python"] else words)
  found = [words for words in lines if words and re.fullmatch(r"launch/\w+\.py", words[0])]
  return [[word.rstrip("…") for word in words] for words in found]


def faults(page: str, root: Path = ROOT) -> list[str]:
  """Every path, link or anchor of a page that leads nowhere."""
  text = text_of(page, root)
  missing = [path for path in sorted(named_paths(text)) if not (root / path).exists()]
  folder = (root / page).parent
  missing += [link for link in sorted(links(text)) if not (folder / link).exists()]
  for target, anchor in re.findall(r"\]\(([^)#\s]*\.md|)#([^)\s]+)\)", text):
    file = folder / target if target else root / page
    if "://" not in target and file.exists() and anchor not in anchors(file.read_text("utf-8")):
      missing.append(f"{target}#{anchor}")
  return missing


def anchors(text: str) -> set[str]:
  """The anchors that GitHub gives the headings of a page."""
  titles = re.findall(r"^#+ (.*)$", text.lower(), re.MULTILINE)
  return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page):
  assert faults(page) == []


@pytest.mark.parametrize(
  "text, fault",
  [
    ("see `gpt_jax/nowhere.py`.", "gpt_jax/nowhere.py"),
    ("python launch/nothing.py --help", "launch/nothing.py"),
    ("[data](gpt_jax/data/README.md#windows)", "gpt_jax/data/README.md"),
    ("# A, b\n[a](#a-b), [this](page.md#a-b) and [that](page.md#c)", "page.md#c"),
    ("a new file `gpt_jax/heads/<name>.py` is fine, `gpt_jax/heads` is not", "gpt_jax/heads"),
  ],
)
def test_a_missing_path_is_reported(tmp_path, text, fault):
  (tmp_path / "page.md").write_text(text)
  assert set(faults("page.md", tmp_path)) == {fault}


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_and_config_field_exists(page):
  for script, *arguments in commands(text_of(page)):
    check_command(script, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_of_a_script_and_every_extra_exists(page):
  setup = text_of("setup.py")
  for words in shell_lines(text_of(page)):
    line = " ".join(words)
    for extras in re.findall(r"\[([a-z0-9,-]+)\]", line) if "pip install" in line else ():
      assert [extra for extra in extras.split(",") if f'"{extra}": ' not in setup] == [], line
    if words[0] == "bash" and "cluster/" not in words[1] and "test.sh" not in words[1]:
      flags = [word.partition("=")[0] for word in words[2:] if word.startswith("-")]
      assert [flag for flag in flags if flag not in text_of(words[1])] == [], line


def test_commands_are_found_wherever_a_page_has_them():
  text = """`launch/plan.py --price=1 …` and
```bash
same="--data=DIR
  --seeds=2"
python launch/finetune.py $same \\
  --checkpoint=runs/a   # a comment
gpt-jax-import-weights --format=hf
bash launch/cluster/slurm.sh --nodes=2 pretrain --config=gpt1
bash launch/docs.sh
```
"""
  assert [" ".join(words).strip() for words in commands(text)] == [
    "launch/plan.py --price=1",
    "launch/finetune.py --data=DIR --seeds=2 --checkpoint=runs/a",
    "launch/import_weights.py --format=hf",
    "launch/pretrain.py --config=gpt1",
  ]


def test_the_table_of_models_has_every_config_and_no_other():
  names, file = set(), ""
  for row in text_of("gpt_jax/models/README.md").splitlines():
    cells = row.split("|")
    entries = re.findall(r"`([^`]+)`", cells[4]) if len(cells) == 8 and "name" not in row else []
    for entry in entries:
      name, _, argument = entry.partition(":")
      file = name or file  # `gpt2:small`, `:medium`
      argument = argument.replace("TASK,TASK", "ewt-tags,trec").replace("TASK", "trec")
      load_config(f"{ROOT}/configs/{file}.py:{argument}".rstrip(":"))
      names.add(file)
  assert names == {path.stem for path in (ROOT / "configs").glob("*.py")}


def test_the_readme_fits_on_few_screens():
  assert len(text_of("README.md").splitlines()) <= 110


def test_every_program_is_in_the_list_of_commands():
  text = text_of("gpt_jax/programs/README.md")
  assert [name for name in programs() if f"launch/{name}.py" not in text] == []


def test_the_readme_leads_to_every_page():
  reached, following = {"README.md"}, ["README.md"]
  while following:
    page = following.pop()
    folder = os.path.dirname(page)
    targets = {os.path.normpath(os.path.join(folder, link)) for link in links(text_of(page))}
    new = targets.intersection(PAGES) - reached
    reached |= new
    following += new
  assert sorted(set(PAGES) - reached) == []

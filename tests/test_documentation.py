"""The documentation names files, programs, flags and config fields that exist."""

import re
import shlex
from pathlib import Path

import pytest
from in_process import check_command, programs

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


def commands(text: str) -> list[list[str]]:
  """The words of every `python launch/….py` line in a bash block."""
  blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
  scripts = [block.replace("\\\n", " ") for language, block in blocks if language == "bash"]
  lines = re.findall(r"^(python launch/.*)$", "\n".join(scripts), re.MULTILINE)
  return [shlex.split(line, comments=True) for line in lines]


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
  for _, script, *arguments in commands(text_of(page)):
    check_command(script, arguments)


def test_the_readme_fits_on_few_screens():
  assert len(text_of("README.md").splitlines()) <= 160


def test_every_program_is_in_the_list_of_commands():
  text = text_of("gpt_jax/programs/README.md")
  assert [name for name in programs() if f"launch/{name}.py" not in text] == []


def test_the_readme_links_to_every_page():
  assert [
    page for page in PAGES if page != "README.md" and f"({page})" not in text_of("README.md")
  ] == []

"""The pages of the documentation site, before mkdocs turns them into HTML (bash launch/docs.sh)."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.app
ROOT = Path(__file__).parents[1]
COLLECT = ROOT / "launch" / "docs" / "collect.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  folder = tmp_path_factory.mktemp("docs")
  (folder / "pages").mkdir()
  (folder / "pages" / "gone.md").write_text("of an earlier build")
  subprocess.run([sys.executable, COLLECT, folder], cwd=folder, check=True)
  return folder


def files_of(menu) -> list[str]:
  if isinstance(menu, str):
    return [menu]
  entries = menu.values() if isinstance(menu, dict) else menu
  return [file for entry in entries for file in files_of(entry)]


def test_the_menu_has_every_page_once(site):
  menu = json.loads((site / "mkdocs.yml").read_text())["nav"]
  pages = [path.relative_to(site / "pages").as_posix() for path in site.glob("pages/**/*.md")]
  assert sorted(files_of(menu)) == sorted(pages)


def test_the_menu_follows_the_roads_of_the_readme(site):
  menu = json.loads((site / "mkdocs.yml").read_text())["nav"]
  roads = ["First steps", "Your own table", "Pre-train and fine-tune", "Clusters", "Reference"]
  assert [road for entry in menu for road in entry] == roads
  assert files_of(menu)[0] == "index.md" and "guides/production.md" in files_of(menu[1])


def test_commands_say_what_they_need(site):
  """More than an installation with the extra `all`, and what commands before them have made."""
  mark = runpy.run_path(str(COLLECT))["mark"]
  assert mark("```bash\npython launch/predict.py --input=gs://B/rows.csv  # onnx\n```\n") == (
    '```bash title="needs a table of your own; a bucket, and the extra gcs"\n'
    "python launch/predict.py --input=gs://B/rows.csv  # onnx\n```\n"
  )
  clusters = (site / "pages" / "guides" / "parallel.md").read_text()
  titles = re.findall(r"^```bash(.*)$", clusters, re.MULTILINE)
  assert len(titles) == 5 and all("needs" in title for title in titles)


def test_commands_without_a_need_are_run_by_tests(site):
  tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
  missing = set()
  for page in (site / "pages").glob("guides/*.md"):
    for block in re.findall(r"^```bash\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
      names = re.findall(r"^python launch/(\w+)\.py", block, re.MULTILINE)
      # As launch("plan", …) or done("plan", …), which run the program's script.
      run = r'(?<!mktemp)(?<!startswith)(?<!replace)\(\s*"{0}"|launch/{0}\.py"'
      missing |= {name for name in names if not re.search(run.format(name), tests)}
  assert missing == set()


def test_every_program_config_module_and_readme_has_its_place(site):
  pages = site / "pages"
  programs = (pages / "reference" / "programs.md").read_text()
  for script in (ROOT / "launch").glob("*.py"):
    assert f"\n## launch/{script.name}\n" in programs
  assert "--include_path" in programs and "--help" in programs
  configs = (pages / "reference" / "configs.md").read_text()
  for config in (ROOT / "configs").glob("*.py"):
    assert f"\n## configs/{config.name}" in configs
  assert "trunk.layers" in configs and "--config.NAME=VALUE" in configs
  assert (pages / "reference" / "gpt_jax.data.windows.md").is_file()
  for readme in (ROOT / "gpt_jax").rglob("README.md"):
    assert (pages / "guides" / f"{readme.parent.name}.md").is_file()


def test_links_between_files_become_links_between_pages():
  relink = runpy.run_path(str(COLLECT))["relink"]
  sources = {"a/README.md": "guides/a.md", "b/README.md": "guides/b.md", "README.md": "index.md"}
  text = "[b](../b/README.md#part), [top](../README.md), [here](#x), [out](https://example.com)"
  assert relink(text, "a/README.md", "guides/a.md", sources) == (
    "[b](b.md#part), [top](../index.md), [here](#x), [out](https://example.com)"
  )
  with pytest.raises(SystemExit, match="a/README.md: links to ../c.md, which is no page"):
    relink("[c](../c.md)", "a/README.md", "guides/a.md", sources)

"""The compilation cache that all commands share: its place, its size, and folders it cannot use."""

import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]

COMPILES = """
import os
from command_line import compilation_cache
compilation_cache.set_up()
import jax
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
for n in range(6):
  print(float(jax.jit(lambda x: x + n)(1.0)), end=" ")
print(os.environ.get("JAX_COMPILATION_CACHE_DIR"), sum("cache_hits" in name for name in events))
"""


@pytest.fixture
def cache(monkeypatch, tmp_path):
  """The module, and the environment in which it looks for its folder."""
  monkeypatch.syspath_prepend(str(ROOT / "launch"))
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
  from command_line import compilation_cache

  return compilation_cache


def start(tmp_path, **environment):
  """A process that compiles six programs."""
  names = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
  names |= {
    "PYTHONPATH": str(ROOT / "launch"),
    "XDG_CACHE_HOME": str(tmp_path / "home"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    **environment,
  }
  pipe = subprocess.PIPE
  return subprocess.Popen(
    [sys.executable, "-c", COMPILES], cwd=tmp_path, env=names, stdout=pipe, stderr=pipe, text=True
  )


def test_processes_that_compile_the_same_at_once_do_not_disturb_each_other_or_the_next(tmp_path):
  together = [start(tmp_path) for _ in range(2)]
  results = [process.communicate() for process in together]
  assert [err for _, err in results] == ["", ""]
  assert len({out.rpartition(" ")[0] for out, _ in results}) == 1
  out = results[0][0]
  folder = Path(out.split()[-2])
  assert folder.parent == tmp_path / "home" / "gpt_jax" / "compiled"
  assert list(folder.iterdir())
  again, err = start(tmp_path).communicate()
  assert err == ""
  assert again.split()[:-1] == out.split()[:-1]
  assert int(again.split()[-1]) >= 6  # hits


def test_the_variable_of_jax_wins(cache, monkeypatch, tmp_path):
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
  cache.set_up()
  assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "mine"
  assert not (tmp_path / "home").exists()


def test_the_default_is_the_home_folder_and_nothing_is_made(cache, monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", "relative")
  monkeypatch.setenv("HOME", str(tmp_path))
  cache.set_up()
  folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
  assert folder.parent == tmp_path / ".cache" / "gpt_jax" / "compiled"
  assert list(tmp_path.iterdir()) == []


def file_in_the_way(home):
  home.write_text("")


def shared_with_everybody(home):
  home.mkdir()
  home.chmod(0o777)


def no_home(home):
  os.environ["XDG_CACHE_HOME"], os.environ["HOME"] = "", "~"


def shared_with_a_group(home):
  home.mkdir()
  home.chmod(0o770)


def in_a_shared_folder(home):
  (home / "gpt_jax" / "compiled").mkdir(parents=True)
  home.chmod(0o777)


def where_others_add_programs(home):
  """A sticky folder keeps them from exchanging files only."""
  os.environ["XDG_CACHE_HOME"] = str(home)
  from command_line import compilation_cache

  leaf = home / "gpt_jax" / "compiled" / compilation_cache._processor()
  leaf.mkdir(parents=True)
  leaf.chmod(0o1777)


def linked_into_a_shared_folder(home):
  shared = home.parent / "shared"
  (shared / "home").mkdir(parents=True)
  shared.chmod(0o777)
  home.symlink_to(shared / "home")


@pytest.mark.parametrize(
  "spoil",
  [
    file_in_the_way,
    shared_with_everybody,
    shared_with_a_group,
    in_a_shared_folder,
    linked_into_a_shared_folder,
    where_others_add_programs,
    no_home,
  ],
)
def test_a_folder_that_cannot_be_used_is_one_warning(cache, monkeypatch, tmp_path, spoil):
  monkeypatch.setenv("HOME", str(tmp_path))  # restored, whatever the case does to it
  monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_gid=7, gr_name="a", gr_mem=[]))
  spoil(tmp_path / "home")
  with pytest.warns(UserWarning, match="no cache of compiled programs in .*: .*; each") as warned:
    cache.set_up()
  assert len(warned) == 1
  assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_private_group_and_a_sticky_folder_keep_others_out(cache, monkeypatch, tmp_path):
  """As with a umask of 002, where each user has a group; and as with a cache in /tmp."""
  user = pwd.getpwuid(os.getuid()).pw_name
  group = SimpleNamespace(gr_gid=7, gr_name=user, gr_mem=[user])
  monkeypatch.setattr("grp.getgrgid", lambda _: group)
  home = tmp_path / "home"
  home.mkdir()
  home.chmod(0o775)
  cache.set_up()
  assert os.environ["JAX_COMPILATION_CACHE_DIR"].startswith(str(home))
  assert list(home.iterdir()) == []
  group.gr_mem.append("another")
  with pytest.warns(UserWarning, match="other users can write to"):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    cache.set_up()
  home.chmod(0o1777)
  cache.set_up()
  assert os.environ["JAX_COMPILATION_CACHE_DIR"].startswith(str(home))
  assert (home / "gpt_jax").stat().st_mode & 0o777 == 0o700


def test_the_programs_used_least_recently_are_removed(cache, monkeypatch, tmp_path):
  monkeypatch.setattr(cache, "_LIMIT", 250)
  folder = tmp_path / "home" / "gpt_jax" / "compiled" / "any"
  folder.mkdir(parents=True)
  for age, name in enumerate("abcd"):
    (folder / name).write_bytes(bytes(100))
    os.utime(folder / name, (1e9 - age, 1e9 - age))
  os.utime(folder / "d", (2e9, 1e9 - 3))  # read again
  cache.set_up()
  assert sorted(path.name for path in folder.iterdir()) == ["a", "d"]

"""hf://: files of a data set by commit, and models by name, with a Hub on loopback."""

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from refused import refused

from gpt_jax.data.sources.source import documents, find

hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.parity("hub")  # which the peers bring
TESTS = Path(__file__).parents[2]
SHA = "0123456789012345678901234567890123456789"
FILES = {
  "README.md": b"# a card",
  "data/a.jsonl": b'{"body": "one"}\n{"body": "two"}\n',
  "data/b.txt": b"three",
}
MODEL = {
  "config.json": b'{"model_type": "bart"}',
  "model.safetensors": b"arrays",
  "vocab.txt": b"[UNK]",
  "onnx/model.safetensors": b"as onnx",
  "pytorch_model.bin": b"pickled",
}
# Without a token. The Hub lists the files of a gated data set to everybody.
REFUSED = {
  "other": (404, "RepoNotFound"),
  "private": (401, "RepoNotFound"),
  "forbidden": (403, ""),
  "gated": (403, "GatedRepo"),
  "busy": (503, ""),
}


class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    self.reply(body=True)

  def do_HEAD(self):
    self.reply(body=False)

  def reply(self, body):
    path = self.path.split("?")[0]
    code, kind, content = 404, "RevisionNotFound", b""
    _, _, name, *_ = re.sub("^(/api)?(/datasets|/models)?", "", path).split("/") + [""]
    files = MODEL if name == "model" else FILES
    is_open = name not in REFUSED or (name == "gated" and "/resolve/" not in path)
    if not is_open and self.headers.get("Authorization") != "Bearer secret":
      code, kind = REFUSED[name]
    elif re.fullmatch(rf"/api/(datasets|models)/owner/{name}(/revision/(v1|main|{SHA}))?", path):
      siblings = [{"rfilename": file} for file in files]
      fields = {"id": f"owner/{name}", "sha": SHA, "siblings": siblings}
      code, content = 200, json.dumps(fields).encode()
    elif path == f"/api/models/owner/{name}/tree/{SHA}":
      entries = [{"type": "file", "path": file, "size": 1, "oid": "0"} for file in files]
      code, content = 200, json.dumps(entries).encode()
    elif re.match(f"(/datasets)?/owner/{name}/resolve/{SHA}/", path):
      code, content = 200, files[path.partition(f"{SHA}/")[2]]
    self.send_response(code)
    self.send_header("Content-Length", str(len(content)))
    self.send_header("X-Repo-Commit", SHA)
    self.send_header("ETag", f'"{len(content)}"')
    if code != 200 and kind:
      self.send_header("X-Error-Code", kind)
    self.end_headers()
    if body:
      self.wfile.write(content)

  def log_message(self, *_):
    pass


@pytest.fixture(scope="module")
def server():
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield f"http://127.0.0.1:{server.server_port}"
  server.shutdown()
  server.server_close()


@pytest.fixture
def here(server, monkeypatch, tmp_path):
  """This process talks to that server."""
  api, download = hub.HfApi, hub.hf_hub_download
  monkeypatch.setattr(hub, "HfApi", lambda: api(endpoint=server))
  monkeypatch.setattr(
    hub,
    "hf_hub_download",
    lambda *a, **k: download(*a, **k, endpoint=server, cache_dir=tmp_path / "cache"),
  )


def test_files_of_a_data_set(here):
  names = [source.name for source in find("hf://owner/set")]
  assert names == [f"hf://owner/set@{SHA}/data/a.jsonl", f"hf://owner/set@{SHA}/data/b.txt"]
  assert list(documents("hf://owner/set", field="body")) == ["one", "two", "three"]
  assert list(documents("hf://datasets/owner/set@v1/data/*.txt")) == ["three"]
  assert list(documents("hf://owner/set/README.md")) == ["# a card"]


@pytest.mark.parametrize(
  "name, fault",
  [
    ("hf://owner", r"should be hf://OWNER/SET"),
    ("hf://owner/set@/a.txt", r"should be hf://OWNER/SET"),
    ("hf://owner/set/gone", r"no file of text matches; the data set has README\.md, data/a"),
  ],
)
def test_mistakes(here, name, fault):
  refused(fault, find, name)


# Several commands in one process; the Hub's package reads HF_ENDPOINT when it is imported.
COMMANDS = """
import json, sys
from in_process import launch
print(json.dumps([launch(*words) for words in json.loads(sys.argv[1])]))
"""


def prepare(endpoint, folder, names, **variables):
  """(exit code, stdout, stderr) of launch/prepare.py for each source."""
  flags = (f"--out={folder}/out", "--vocab_size=270", "--valid_share=0.5", "--text_column=body")
  words = [["prepare", f"--source={name}", *flags] for name in names]
  return run(endpoint, folder, words, **variables)


def run(endpoint, folder, words, **variables):
  """(exit code, stdout, stderr) of each command."""
  environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
  environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hub"), **variables}
  environment["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), str(TESTS)])
  command = [sys.executable, "-c", COMMANDS, json.dumps(words)]
  done = subprocess.run(command, env=environment, check=True, capture_output=True)
  return json.loads(done.stdout)


def test_the_command_prepares_a_revision(server, tmp_path):
  private = "hf://owner/private@v1"
  made, again = prepare(server, tmp_path, [private, private], HF_TOKEN="secret")
  assert made[0] == 0, made[2]
  sources = json.loads((tmp_path / "out" / "prepare.json").read_text())["sources"]
  names = [f"hf://owner/private@{SHA}/data/{file}" for file in ("a.jsonl", "b.txt")]
  assert [name for name, _ in sources] == names
  assert "already prepared with these settings" in again[1]


LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
UNREADABLE = f"no such data set, or none that this user may read: {LOGIN}"
REFUSALS = {
  "hf://owner/other": "no such data set, or file in it (the Hub answered 404)",
  "hf://owner/set@v2": "the data set has no such revision (the Hub answered 404)",
  "hf://owner/private": f"{UNREADABLE} (the Hub answered 401)",
  "hf://owner/forbidden": f"{UNREADABLE} (the Hub answered 403)",
  f"hf://owner/gated@{SHA}/data/a.jsonl": (
    f"its owner asks for consent: agree on its page of the Hub, then {LOGIN} (the Hub answered 403)"
  ),
  "hf://owner/busy": "the Hub answered 503 Service Unavailable",
}


def test_what_the_hub_refuses_is_one_line(server, tmp_path):
  ends = prepare(server, tmp_path, REFUSALS)
  for (name, message), (code, _, err) in zip(REFUSALS.items(), ends, strict=True):
    assert code == (75 if "busy" in name else 2)
    assert err == f"error: {name}: {message}\n"


def test_no_network_is_one_line(tmp_path):
  with socket.socket() as unused:
    unused.bind(("127.0.0.1", 0))  # without listening: connections are refused
    port = unused.getsockname()[1]
    ((code, _, err),) = prepare(f"http://127.0.0.1:{port}", tmp_path, ["hf://owner/set"])
  assert code == 75 and err.count("\n") == 1
  assert err.startswith("error: hf://owner/set: the Hub was not reached (")


def test_a_model_is_downloaded_by_its_name(server, tmp_path):
  """One form of the weights alone, and once: without a server it is there."""
  words = ["generate", "--prompt=a", "--checkpoint=owner/model"]
  other = [*words[:2], "--checkpoint=owner/other"]
  downloaded, refused = run(server, tmp_path, [words, other])
  (snapshot,) = tmp_path.glob("hub/hub/models--owner--model/snapshots/*")
  names = {path.name for path in snapshot.iterdir()}
  assert names == {"config.json", "model.safetensors", "vocab.txt"}
  for code, _, err in (downloaded, *run("http://127.0.0.1:9", tmp_path, [words])):
    assert code == 2 and "model_type 'bart': should be one of" in err
  assert (
    refused[0] == 2
    and "download: no such model, or file in it (the Hub answered 404)" in refused[2]
  )

"""hf://: files of a data set by commit, with a Hub on loopback."""

import http.server
import json
import threading

import pytest

from gpt_jax.data.sources.source import documents, find
from gpt_jax.errors import InputError

hub = pytest.importorskip("huggingface_hub")
SHA = "0123456789012345678901234567890123456789"
FILES = {
  "README.md": b"# a card",
  "data/a.jsonl": b'{"body": "one"}\n{"body": "two"}\n',
  "data/b.txt": b"three",
}


class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    self.reply(body=True)

  def do_HEAD(self):
    self.reply(body=False)

  def reply(self, body):
    parts = self.path.split("?")[0]
    content = b'{"error": "not found"}'
    code = 404
    if parts in ("/api/datasets/owner/set", "/api/datasets/owner/set/revision/v1"):
      siblings = [{"rfilename": name} for name in FILES]
      code, content = (
        200,
        json.dumps({"id": "owner/set", "sha": SHA, "siblings": siblings}).encode(),
      )
    for name, value in FILES.items():
      if parts == f"/datasets/owner/set/resolve/{SHA}/{name}":
        code, content = 200, value
    self.send_response(code)
    self.send_header("Content-Length", str(len(content)))
    self.send_header("X-Repo-Commit", SHA)
    self.send_header("ETag", f'"{len(content)}"')
    self.end_headers()
    if body:
      self.wfile.write(content)

  def log_message(self, *_):
    pass


@pytest.fixture
def server(monkeypatch, tmp_path):
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  url = f"http://127.0.0.1:{server.server_port}"
  api, download = hub.HfApi, hub.hf_hub_download
  monkeypatch.setattr(hub, "HfApi", lambda: api(endpoint=url))
  monkeypatch.setattr(
    hub,
    "hf_hub_download",
    lambda *a, **k: download(*a, **k, endpoint=url, cache_dir=tmp_path / "cache"),
  )
  yield url
  server.shutdown()
  server.server_close()


def test_files_of_a_data_set(server):
  names = [source.name for source in find("hf://owner/set")]
  assert names == [f"hf://owner/set@{SHA}/data/a.jsonl", f"hf://owner/set@{SHA}/data/b.txt"]
  assert list(documents("hf://owner/set", field="body")) == ["one", "two", "three"]
  assert list(documents("hf://datasets/owner/set@v1/data/*.txt")) == ["three"]
  assert list(documents("hf://owner/set/README.md")) == ["# a card"]


@pytest.mark.parametrize(
  "name, fault",
  [
    ("hf://owner", r"should be hf://OWNER/SET"),
    ("hf://owner/set/gone", r"no file of text matches; the data set has README\.md, data/a"),
    ("hf://owner/other", r"hf://owner/other: .*404"),
  ],
)
def test_mistakes(server, name, fault):
  with pytest.raises(InputError, match=fault):
    find(name)

"""Stands in for gcloud: records its arguments, and keeps a TPU of two hosts as folders.

In the folder $CLOUD: `calls` (a JSON list per call), `state` of the queued resource (absent: it is
not there), `node`, the state of the TPU, `after_create`, the state that creation leads to,
`create_error`, what it answers instead, `broken`, how many of the next connections fail, and the
hosts' home folders `0` and `1`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

cloud = Path(os.environ["CLOUD"])


def text(name: str, default: str = "") -> str:
  path = cloud / name
  return path.read_text().strip() if path.exists() else default


def fail(message: str) -> None:
  sys.exit(f"ERROR: (gcloud.compute.tpus) {message}\nmore of it")


def hosts(flags: dict[str, str]) -> list[Path]:
  left = int(text("broken", "0"))
  if left:
    (cloud / "broken").write_text(str(left - 1))
    fail("[/usr/bin/ssh] exited with return code [255].")
  return [cloud / "0", cloud / "1"] if flags["--worker"] == "all" else [cloud / flags["--worker"]]


def queued_resources(verb: str, flags: dict[str, str]) -> None:
  if verb == "create":
    if error := text("create_error"):
      fail(error)
    (cloud / "state").write_text(text("after_create", "ACTIVE"))
    (cloud / "node").write_text("READY")
    for host in ("0", "1"):
      shutil.rmtree(cloud / host, ignore_errors=True)
      (cloud / host).mkdir()
  elif not text("state"):
    fail("NOT_FOUND: Resource was not found")
  elif verb == "describe":
    print(text("state"))
  elif verb == "delete":
    (cloud / "state").unlink()


def tpu_vm(verb: str, words: list[str], flags: dict[str, str]) -> None:
  if verb == "describe":
    print(text("node"))
  elif verb == "scp":
    for host in hosts(flags):
      shutil.copy(words[0], host / words[1].partition(":")[2])
  elif verb == "ssh":
    codes = []
    for host in hosts(flags):
      environment = {**os.environ, "HOME": str(host)}
      command = ["bash", "-c", flags["--command"]]
      codes.append(subprocess.run(command, cwd=host, env=environment).returncode)
    sys.exit(max(codes))


def main(arguments: list[str]) -> None:
  with (cloud / "calls").open("a") as file:
    print(json.dumps(arguments), file=file)
  assert arguments[:2] == ["compute", "tpus"], arguments
  group, verb, *rest = arguments[2:]
  words = [word for word in rest if not word.startswith("--")]
  flags = dict(word.partition("=")[::2] for word in rest if word.startswith("--"))
  if group == "queued-resources":
    queued_resources(verb, flags)
  else:
    tpu_vm(verb, words, flags)


main(sys.argv[1:])

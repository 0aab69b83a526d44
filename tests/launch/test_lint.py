"""shellcheck, hadolint and the schema of JobSet accept what launch/ has (extra `test`)."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpt_jax.programs.config_files import load_config

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "launch").rglob("*.sh"), ROOT / ".ci" / "run"])
MANIFESTS = ["kubernetes.yaml", "kubernetes_gpu.yaml"]


def missing(name: str):
  """Skips the test, but in CI, which installs the extra, fails it."""
  stop = pytest.fail if os.environ.get("CI") else pytest.skip
  stop(f"{name} is not installed (extra 'test'; there are wheels for Linux on x86-64)")


def complaints(tool: str, *arguments) -> str:
  folders = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
  path = shutil.which(tool, path=folders) or missing(tool)
  done = subprocess.run([path, *arguments], cwd=ROOT, capture_output=True, text=True)
  assert (done.returncode == 0) == (done.stdout == ""), done.stderr
  return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script):
  assert complaints("shellcheck", "--external-sources", "--source-path=SCRIPTDIR/..", script) == ""


def test_shellcheck_would_complain(tmp_path):
  (tmp_path / "x.sh").write_text("#!/bin/bash\nrm -r $1\n")
  assert "SC2086" in complaints("shellcheck", tmp_path / "x.sh")


def test_hadolint_has_nothing_to_say(tmp_path):
  assert complaints("hadolint", "launch/cluster/Dockerfile") == ""
  (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp\n")
  assert "DL3003" in complaints("hadolint", tmp_path / "Dockerfile")


def manifest(name: str) -> dict:
  return yaml.safe_load((ROOT / "launch" / "cluster" / name).read_text())


def faults(jobset: dict) -> list[str]:
  """What the schema of JobSet, with the pods in it, does not have or refuses."""
  try:
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
  except ImportError:
    missing("kubeflow-trainer-api")
  try:
    known = JobsetV1alpha2JobSet.from_dict(jobset).to_dict()
  except ValueError as error:
    return [str(error)]
  return list(dropped(jobset, known))  # the models ignore unknown fields


def dropped(given, known, path: str = ""):
  if isinstance(given, dict):
    for key, value in given.items():
      if key in known:
        yield from dropped(value, known[key], f"{path}.{key}")
      else:
        yield f"{path}.{key}"
  elif isinstance(given, list):
    for index, (value, other) in enumerate(zip(given, known, strict=True)):
      yield from dropped(value, other, f"{path}.{index}")
  elif given != known:
    yield f"{path}: {given} is read as {known}"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_fits_its_schema(name):
  assert faults(manifest(name)) == []


def test_a_misspelt_field_and_a_wrong_type_are_found():
  jobset = manifest(MANIFESTS[0])
  job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
  pod = job["template"]["spec"]
  pod["containers"][0]["volumeMount"] = pod["containers"][0].pop("volumeMounts")
  assert faults(jobset) == [
    ".spec.replicatedJobs.0.template.spec.template.spec.containers.0.volumeMount"
  ]
  job["podFailurePolicy"]["rules"][0]["action"] = "FailJobs"
  assert "FailJob" in faults(jobset)[0]


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_parts_of_a_manifest_agree(name):
  jobset = manifest(name)
  assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
  (replicated,) = jobset["spec"]["replicatedJobs"]
  job = replicated["template"]["spec"]
  pod = job["template"]["spec"]
  (container,) = pod["containers"]
  assert job["completions"] == job["parallelism"]
  # JobSet starts all pods again at once, but not after a user error or Ctrl-C.
  assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
  (rule,) = job["podFailurePolicy"]["rules"]
  codes = {"containerName": container["name"], "operator": "In", "values": [2, 130]}
  assert rule["onExitCodes"] == codes
  (rule,) = jobset["spec"]["failurePolicy"]["rules"]
  assert rule["action"] == "FailJobSet" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
  volumes = {volume["name"] for volume in pod["volumes"]}
  assert {mount["name"] for mount in container["volumeMounts"]} == volumes

  target = container["image"].rpartition(":")[2]
  dockerfile = (ROOT / "launch" / "cluster" / "Dockerfile").read_text()
  assert target in re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.M)
  program, *flags = container["args"]
  assert (ROOT / "launch" / f"{program.removeprefix('gpt-jax-')}.py").exists()
  options = dict(flag.removeprefix("--").partition("=")[::2] for flag in flags)
  assert "distributed" in options and load_config(options["config"])
  if "coordinator" in options:
    assert int(options["num_processes"]) == job["completions"]
    host = f"{jobset['metadata']['name']}-{replicated['name']}-0-0.{jobset['metadata']['name']}"
    assert options["coordinator"].partition(":")[0] == host


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_pod_runs_its_arguments_in_place_of_the_shell(name):
  """So that SIGTERM reaches the program; with the index of the pod where it is needed."""
  (replicated,) = manifest(name)["spec"]["replicatedJobs"]
  (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
  command = [word.replace("ulimit -l 68719476736", "true") for word in container["command"]]
  program = "import os, sys; print(os.getpid(), sys.argv[1:])"
  words = [*command, sys.executable, "-c", program, "a b"]
  environment = {**os.environ, "JOB_COMPLETION_INDEX": "3"}
  process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
  out, _ = process.communicate()
  index = ["--process_id=3"] if "gpu" in name else []
  assert out == f"{process.pid} {['a b', *index]}\n"

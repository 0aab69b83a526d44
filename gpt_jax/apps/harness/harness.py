"""Evaluates a language model on tasks of EleutherAI's lm-evaluation-harness, or in its format."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from gpt_jax.apps.harness import language_model
from gpt_jax.errors import InputError, counted, did_you_mean
from gpt_jax.files import write_json
from gpt_jax.programs.outputs import check_out

_BOOTSTRAP = 1000  # resamples for the standard errors of perplexity, F1 and the like


def run(
  checkpoint: str,
  tasks: Sequence[str],
  include_path: str = "",
  *,
  num_fewshot: int | None = None,
  limit: int = 0,
  out: str = "",
  overwrite: bool = False,
) -> dict[str, Any]:
  """Evaluates one checkpoint and prints a line per result.

  The harness's own tasks download their data from the Hugging Face hub into its cache; tasks in
  `include_path` may read local files.

  Args:
    checkpoint: see load_model; of a fine-tuned model the trunk is used.
    tasks: tasks, groups or tags by name, or YAML files.
    include_path: folder of further task files (YAML); their names come before the harness's own.
    num_fewshot: solved examples before each question; by default as the task says.
    limit: only the first documents of each task; 0: all.
    out: JSON file for the results.
    overwrite: replace an existing output.

  Returns:
    {task: {"METRIC,FILTER": value}}, the harness's "results".
  """
  model_of = language_model.model_class()  # fails without the harness
  if not tasks:
    raise InputError("--tasks: name one or more, such as --tasks=lambada_openai")
  if out:
    check_out(out, overwrite)
  # Standard errors are bootstrapped in processes that would be forked beside JAX's threads.
  os.environ.setdefault("DISABLE_MULTIPROC", "1")
  import lm_eval
  from lm_eval.utils import handle_non_serializable

  with contextlib.redirect_stdout(sys.stderr):  # the harness prints progress
    model = model_of(checkpoint)
    manager = _task_manager(tasks, include_path)
    results = lm_eval.simple_evaluate(
      model,
      tasks=_load_tasks(manager, tasks),
      num_fewshot=num_fewshot,
      limit=limit or None,
      bootstrap_iters=_BOOTSTRAP,
      log_samples=False,
      task_manager=manager,
    )
  _print_table(results)
  if out:
    kept = ("results", "groups", "versions", "n-shot", "n-samples", "higher_is_better")
    summary = {name: results[name] for name in kept if name in results}
    summary |= {"checkpoint": checkpoint, "lm_eval": version("lm_eval")}
    write_json(out, json.loads(json.dumps(summary, default=handle_non_serializable)))
  return results["results"]


def _task_manager(tasks: Sequence[str], include_path: str) -> Any:
  """The index of all tasks that may be named."""
  from lm_eval.tasks import TaskManager

  if include_path and not os.path.isdir(include_path):
    raise InputError(f"--include_path={include_path}: no such folder; it holds YAML files of tasks")
  paths = [include_path] if include_path else []
  local = TaskManager(include_path=paths, include_defaults=False)
  # Reading the harness's own thousands of files takes seconds.
  if all(name in local.all_subtasks or name.endswith(".yaml") for name in tasks):
    return local
  manager = TaskManager(include_path=paths)
  for name in tasks:
    if name not in manager.all_tasks and not name.endswith(".yaml"):
      guess = did_you_mean(name, manager.all_tasks)
      raise InputError(f"--tasks={name}: no such task{guess} (`lm-eval ls tasks` lists them)")
  return manager


def _load_tasks(manager: Any, names: Sequence[str]) -> list[Any]:
  loaded: list[Any] = []
  for name in names:
    try:
      tasks = manager.load([name])
    except Exception as error:  # a faulty YAML file, missing data, no network: of many types
      reason = f"{type(error).__name__}: {error}"
      raise InputError(f"--tasks={name}: cannot be loaded ({reason})") from error
    groups = tasks.get("groups") or {}
    children = {child for names in (tasks.get("group_map") or {}).values() for child in names}
    top = [group for group_name, group in groups.items() if group_name not in children]
    loaded += top or tasks["tasks"].values()
  return loaded


def _print_table(results: dict[str, Any]) -> None:
  """A line per task and metric. The harness's own table starts processes beside JAX's threads."""
  rows = []
  for task, metrics in results["results"].items():
    documents = results["n-samples"].get(task, {}).get("effective")
    count = counted(documents, "document") if documents else ""
    for key, value in metrics.items():
      metric, _, filter = key.partition(",")
      if not filter or metric.endswith("_stderr"):  # without a filter it is the task's name
        continue
      error = metrics.get(f"{metric}_stderr,{filter}")
      spread = f"± {error:.4f}" if isinstance(error, float) else ""
      name = metric if filter == "none" else f"{metric}, {filter}"
      number = f"{value:.4f}" if isinstance(value, (int, float)) else str(value)
      rows.append((task, name, number, spread, count))
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  for task, name, number, spread, count in rows:
    line = f"{task:{widths[0]}}  {name:{widths[1]}}  {number:>{widths[2]}}  {spread:{widths[3]}}"
    print(f"{line}  {count}".rstrip())

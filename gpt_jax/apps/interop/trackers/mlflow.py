"""MLflow: files in `mlflow/` of the run's folder, or the server that MLFLOW_TRACKING_URI names."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from gpt_jax.training.trackers import TrackedRun, metric_name

PACKAGE, EXTRA = "mlflow", "mlflow"
ELSEWHERE = "MLFLOW_TRACKING_URI"

_ENVIRONMENT = {  # where the user has not set it
  "MLFLOW_DISABLE_TELEMETRY": "true",
  "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow's advice is a database, which needs more packages
  "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # a server that is down is waited for at the start only
  "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_MAX_PARAMETERS = 100  # in a request


class Run:
  """A run in an experiment of MLflow."""

  def __init__(self, run: TrackedRun):
    for name, value in _ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    self._metric = Metric
    folder = Path(os.path.abspath(run.root)) / "mlflow"
    self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or folder.as_uri())
    if run.id:
      self._client.update_run(run.id, status="RUNNING")
      self.id = run.id
      return
    title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "gpt_jax")
    experiment = self._client.get_experiment_by_name(title)
    number = experiment.experiment_id if experiment else self._client.create_experiment(title)
    self.id = self._client.create_run(number, run_name=run.name).info.run_id
    parameters = [Param(name, str(value)[:500]) for name, value in run.settings.items()]
    for begin in range(0, len(parameters), _MAX_PARAMETERS):
      self._client.log_batch(self.id, params=parameters[begin : begin + _MAX_PARAMETERS])

  def log(self, step: int, values: Mapping[str, float]) -> None:
    now = int(time.time() * 1000)
    metrics = [self._metric(metric_name(name), value, now, step) for name, value in values.items()]
    self._client.log_batch(self.id, metrics=metrics)

  def close(self, failed: bool) -> None:
    self._client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


def start(run: TrackedRun) -> Run:
  return Run(run)

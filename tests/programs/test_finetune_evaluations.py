"""Evaluations of a fine-tuning run without one: what is predicted when."""

from types import SimpleNamespace

from gpt_jax.config import to_json
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import finetune_evaluations


def test_what_the_last_evaluation_predicted_is_reported_and_forgotten(monkeypatch, tmp_path):
  predicted, reported = [], []

  def make_predictor(*_):
    return lambda params, *_: predicted.append(params) or len(predicted)

  def write_report(workdir, task, dev_set, prediction, *_):
    reported.append(prediction)

  monkeypatch.setattr(finetune_evaluations, "make_task_predictor", make_predictor)
  monkeypatch.setattr(finetune_evaluations, "write_dev_report", write_report)
  monkeypatch.setattr(finetune_evaluations, "format_calibration", str)
  task = SimpleNamespace(name="x", parts=[0], has_report=True, is_classification=True)
  task.measures = lambda prediction, truth: {"accuracy": prediction}
  recipe = SimpleNamespace(
    meta={"model": to_json(ModelConfig(TransformerConfig()))},
    config=SimpleNamespace(batch_size=2),
    mesh=None,
    base=None,
    inference_params=lambda params: params,
  )
  dev_set, start = SimpleNamespace(truth=None), SimpleNamespace(tokenizer=None)
  measure, report = finetune_evaluations.make_evaluations(recipe, task, dev_set, "", start)
  last, other = {"trunk": 0}, {"trunk": 1}
  assert measure(other) == {"dev_accuracy": 1} and measure(last) == {"dev_accuracy": 2}
  for params in (last, last, other):  # of another checkpoint than the last one, it predicts again
    report(params, 1, str(tmp_path))
  assert reported == [2, 3, 4] and predicted == [other, last, last, other]

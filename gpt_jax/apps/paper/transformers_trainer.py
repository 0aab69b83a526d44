"""Fine-tuning by transformers' Trainer, on the examples and by the recipe of one of our runs."""

import math
from typing import Any

from gpt_jax.errors import require
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.tasks.encoding import Example


def train(
  config: FinetuneConfig,
  model: str,
  train_set: list[Example],
  dev_set: list[Example],
  folder: str,
) -> tuple[list[list[float]], float]:
  """The probabilities of the dev set, [N][K], and the examples per second of training.

  The loss is the cross-entropy with the examples' distributions, in ours as here.

  Args:
    config: epochs, batch size, AdamW with a linear schedule, and seed.
    model: a folder that transformers reads.
    folder: for its output; it writes no checkpoint.
  """
  torch, transformers, _ = (
    require(package, "--peers", package, "peers")
    for package in ("torch", "transformers", "accelerate")  # the last for Trainer
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(model)

  def rows(examples: list[Example]) -> list[dict[str, Any]]:
    encoded = []
    for example in examples:
      texts = example.sequences[0]  # a text, or both in their order
      encoded.append({**tokenizer(*texts, truncation=True), "labels": example.label})
    return encoded

  def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    del num_items_in_batch  # without accumulation
    return torch.nn.functional.cross_entropy(outputs.logits, labels)

  optim, steps = config.optim, config.train.epochs * math.ceil(len(train_set) / config.batch_size)
  arguments = transformers.TrainingArguments(
    output_dir=folder,
    seed=config.train.seed,
    per_device_train_batch_size=config.batch_size,
    per_device_eval_batch_size=config.batch_size,
    num_train_epochs=config.train.epochs,
    learning_rate=optim.learning_rate,
    lr_scheduler_type="linear",
    warmup_steps=round(optim.warmup_length(steps)),
    weight_decay=optim.weight_decay,
    adam_beta1=optim.b1,
    adam_beta2=optim.b2,
    adam_epsilon=optim.eps,
    max_grad_norm=optim.clip_norm,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
  )
  transformers.set_seed(config.train.seed)  # the head is random
  classes = len(train_set[0].label or ())
  classifier = transformers.AutoModelForSequenceClassification.from_pretrained(
    model, num_labels=classes
  )
  trainer = transformers.Trainer(
    model=classifier,
    args=arguments,
    train_dataset=rows(train_set),
    data_collator=transformers.DataCollatorWithPadding(tokenizer),
    compute_loss_func=loss,
  )
  pace = trainer.train().metrics["train_samples_per_second"]
  logits = trainer.predict(rows(dev_set)).predictions
  return torch.softmax(torch.tensor(logits), dim=-1).tolist(), pace

"""GPT-1 (Radford et al. 2018) in JAX and Flax: pre-train on text, fine-tune on a task, use it.

The layers, in order; each imports only what stands above it, and nothing imports launch/:

  errors, writing, config, batch, paper
                                what everything agrees on: errors a user can mend, whole files,
                                configs, batches, and known results
  data, metrics, seeds          text to token files and packed examples; scores, and their spread.
  numpy only tasks, objectives             one small file a task or objective. numpy only catalog
  the program that lists the tasks. numpy only dropout, sharding             masks by a counter
  hash; meshes, and path rules that partition a tree trunks                        ids to hidden
  states: transformer, lstm models, optim                 a trunk with its output; the optimizers
  and schedules losses, checkpoint, interop   objectives of training; orbax; other formats in and
  out workdir, pretrained           the folder of a run, and the trained model in it train,
  evaluate, generate, zero_shot, reporting, figures inference                     a trained model in
  hand: what gpt_jax.load gives prepare, pretrain, finetune, predict, glue, visualize, export,
  import_weights, verify, reproduce, quickstart,
    benchmark: programs with run(…)

A notebook calls the programs' run(…), which is all that launch/ does, and gpt_jax.load.
"""

__version__ = "0.1.0"


def load(path: str):
  """A trained model, to generate, score, embed and classify with; see gpt_jax.inference.model.

  Args:
    path: a workdir (its newest checkpoint), `<workdir>/best`, `<workdir>/checkpoints/<step>`, an
      exported folder, OpenAI's released folder, or one of transformers'.

  Returns:
    A gpt_jax.inference.model.Model.

  Raises:
    gpt_jax.errors.InputError: nothing of the kind there, damaged, or a vocabulary that is not the
    model's.
  """
  from gpt_jax.inference import (
    model as inference,
  )  # here, so that importing the package takes no time

  return inference.load(path)

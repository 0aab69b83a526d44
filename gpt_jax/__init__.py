"""GPT-1 (Radford et al. 2018) in JAX and Flax: pre-train on text, fine-tune on a task, use it.

The layers, in order; each imports only what stands above it, and nothing imports launch/:

  errors, config, batch, paper  what everything agrees on: configs, batches, errors a user can mend, known results
  data, metrics, seeds          text to token files and packed examples; scores, and their spread. numpy only
  tasks, objectives             one small file a task or objective. numpy only
  catalogue                     the program that lists the tasks. numpy only
  dropout, sharding             masks by a counter hash; meshes, and path rules that partition a tree
  trunks                        ids to hidden states: transformer, lstm
  models, optim                 a trunk with its output; the optimisers and schedules
  losses, checkpoint, interop   objectives of training; orbax; other formats in and out
  workdir, pretrained           the folder of a run, and the trained model in it
  train, evaluate, generate, zero_shot, reporting, figures
  prepare, pretrain, finetune, predict, glue, visualize, export, reproduce, quickstart, benchmark: programs with run(…)

A notebook calls the programs' run(…), which is all that launch/ does.
"""

__version__ = "0.1.0"

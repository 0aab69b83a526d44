"""GPT-1 (Radford et al. 2018) in JAX and Flax: pre-train on text, fine-tune on tasks.

The subpackages, top to bottom. Each imports only from those above it; nothing imports launch/:

  config errors files batch    shared by all                                    \\
  extensions                   files found by name                                |
  data                         text -> tokens -> windows                          |  numpy only,
  tasks                        labeled rows -> packed batches                     |  no jax
  objectives                   rows of token ids -> a pre-training batch         /
  parallel                     device mesh, partition rules, placement
  ops                          dropout, attention, cross-entropy
  models                       trunks (transformer, lstm, …) and heads/ (language, classify, …)
  checkpoints                  the run folder, saved steps, export formats
  training                     optimizer, step, loop, hooks
  inference                    generation, scoring, evaluation
  programs                     one run(…) per command in launch/: prepare, pretrain, finetune, …
  apps                         products on top, a folder each: report, label, serve, paper, …

Eight files are the core, to be read in this order: data/windows.py, objectives/causal.py,
models/transformer.py, models/heads/language.py, ops/cross_entropy.py, models/loss.py,
training/step.py, training/loop.py. .github/CONTRIBUTING.md says what each of them does.

A notebook calls the programs' run(…), as launch/ does, and gpt_jax.load.
"""

TYPE_CHECKING = False  # for type checkers; importing typing would slow `import gpt_jax` down
if TYPE_CHECKING:
  from gpt_jax.inference.model import Model

__version__ = "0.3.0"


def load(path: str, warm_up: bool = False) -> "Model":
  """Loads a trained model to generate, score, embed and classify with; see gpt_jax.inference.model.

  Args:
    path: a workdir (its newest checkpoint), `<workdir>/best`, `<workdir>/checkpoints/<step>`, an
      exported folder, OpenAI's released folder, a transformers folder, a TF-IDF classifier, or the
      name of a released model: minilm, or OWNER/MODEL of the Hugging Face Hub.
    warm_up: compile `classify` now, which takes some seconds, and not at the first calls.
  """
  from gpt_jax.inference import model  # not at the top: importing gpt_jax must stay instant

  return model.load(path, warm_up)

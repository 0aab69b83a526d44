"""Models of transformers: of a folder, or drawn by torch."""

import re
from typing import Any


def load_theirs(name: str, folder: Any, complete: bool = False) -> Any:
  """The model of a class, read offline and quietly; complete: of whose arrays none is missing."""
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  model, report = getattr(transformers, name).from_pretrained(
    str(folder), local_files_only=True, output_loading_info=True
  )
  if complete:
    assert not any(report["missing_keys"]) and not any(report["unexpected_keys"]), report
  return model.eval()


def draw_theirs(name: str, **settings: Any) -> Any:
  """A model of a class with these settings, every parameter perturbed."""
  import torch
  import transformers

  kind = re.match("Bert|Roberta|Albert|GPT2|OpenAIGPT|T5", name)[0]
  torch.manual_seed(0)
  model = getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**settings))
  with torch.no_grad():
    for parameter in model.parameters():
      parameter += 0.1 * torch.randn_like(parameter)
  return model.eval()

"""Checkpoints: store (orbax, verified), run_folder (config.json and tokenizer/ of a run), load.

`load_model` reads a trained model from a run or from any of formats/, as a LoadedModel.
May import: the root files, data, tasks, objectives, parallel, ops, models.
To add a format: see formats/.
"""

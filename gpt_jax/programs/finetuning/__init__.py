"""The parts of launch/finetune.py: config, start, examples, model, measures and result."""

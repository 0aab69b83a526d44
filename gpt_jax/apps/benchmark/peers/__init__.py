"""What gpt_jax is measured against: the same work in PyTorch and transformers, as their users would
write it.

plain_gpt: a GPT in PyTorch; training: its training step and transformers'; finetuning: a
classifier of transformers on padded batches; generation: transformers' with its cache; packages,
transformers_model, update: what they share.
"""

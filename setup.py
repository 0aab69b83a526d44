"""The package; launch/constraints.txt has the exact versions that the tests passed with."""

import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(
  r'__version__ = "(.+)"', Path(__file__).with_name("gpt_jax").joinpath("__init__.py").read_text()
)[1]

LIGHT = {
  "metrics": ["scikit-learn>=1.5", "scipy>=1.14"],  # task scores, the bag-of-words baseline
  "text": ["ftfy>=6.2"],  # the paper's clean-up of text
  "plots": ["matplotlib>=3.9"],
  "tensorboard": ["tensorboardX>=2.6"],
  "progress": ["tqdm>=4.66"],
  "safetensors": ["safetensors>=0.5,<1"],  # weights in that format, and transformers' folders
}

setup(
  name="gpt_jax",
  version=VERSION,
  description="GPT-1: generative pre-training and fine-tuning in JAX",
  packages=find_packages(include=["gpt_jax", "gpt_jax.*"]),
  package_data={"gpt_jax.programs": ["visualize.html", "visualize.js"]},
  python_requires=">=3.11",
  install_requires=[
    "jax>=0.10.2,<0.12",
    "flax>=0.12.8,<0.13",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12.4,<1.0",  # 1.0 has another top level
    "numpy>=2.0,<3",
    "absl-py>=2.1",
    "sentencepiece>=0.2.1,<0.3",
    "tensorflow-datasets>=4.9.8,<5",
    "importlib_resources",  # which tensorflow-datasets imports and does not ask for
  ],
  extras_require={
    **LIGHT,
    "all": sorted(sum(LIGHT.values(), [])),
    "released": [
      "ftfy>=6.2",
      "spacy>=3.8,<4",
      "tokenizers>=0.20",
    ],  # text for OpenAI's vocabularies
    "test": [
      "pytest>=8",
      "ruff>=0.9",
      "nbclient>=0.10",
      "ipykernel>=6.29",
    ],  # the last two execute the notebooks
    "parity": ["torch==2.13.0", "transformers>=5", "safetensors>=0.5,<1"],
    "tpu": ["jax[tpu]>=0.10.2,<0.12"],
    "cuda": ["jax[cuda12]>=0.10.2,<0.12"],
  },
)

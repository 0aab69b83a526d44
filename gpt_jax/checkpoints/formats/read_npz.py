"""Runs an exported GPT-1 or GPT-2 (launch/export.py --format=npz) in NumPy alone; copy this file.

python read_npz.py FOLDER ID ID ID …
"""

import json
import sys

import numpy as np


def load(folder):
  """The parameters by name, e.g. trunk/block_0/mlp/in/kernel, and the Transformer's sizes."""
  with open(f"{folder}/config.json", encoding="utf-8") as file:
    sizes = json.load(file)["model"]["trunk"]
  with np.load(f"{folder}/weights.npz", allow_pickle=False) as arrays:
    return dict(arrays), sizes


def logits(params, sizes, ids):
  """Next-token logits float32 [T, V] after each of the ids [T]."""
  assert sizes["activation"] == "gelu_tanh", "mlp has GPT's activation alone"
  table = params["trunk/tokens"]
  x = table[ids] + params["trunk/positions"][: len(ids)]  # [T, D]
  for i in range(sizes["layers"]):
    prefix = f"trunk/block_{i}/"
    p = {name.removeprefix(prefix): params[name] for name in params if name.startswith(prefix)}
    if sizes["norm"] == "pre":  # GPT-2
      x = x + attention(p, norm(p, "attention_norm", x))
      x = x + mlp(p, norm(p, "mlp_norm", x))
    else:
      x = norm(p, "attention_norm", x + attention(p, x))
      x = norm(p, "mlp_norm", x + mlp(p, x))
  x = norm(params, "trunk/last_norm", x) if sizes["norm"] == "pre" else x
  return x @ table[: sizes["vocab_size"]].T


def attention(p, x):
  qkv = np.einsum("td,dnhk->nhtk", x, p["attention/qkv/kernel"])  # [3, H, T, K]
  q, k, v = qkv + p["attention/qkv/bias"][:, :, None]
  scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5  # [H, T, T]
  scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)  # causal
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  return np.einsum("htk,hkd->td", weights @ v, p["attention/out/kernel"]) + p["attention/out/bias"]


def mlp(p, x):
  x = x @ p["mlp/in/kernel"] + p["mlp/in/bias"]
  x = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))  # GELU
  return x @ p["mlp/out/kernel"] + p["mlp/out/bias"]


def norm(p, name, x):
  x = x - x.mean(-1, keepdims=True)
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p[f"{name}/scale"] + p[f"{name}/bias"]


if __name__ == "__main__":
  params, sizes = load(sys.argv[1])
  print(logits(params, sizes, list(map(int, sys.argv[2:])))[-1].argsort()[:-6:-1])

"""The LSTM of models/lstm.py in NumPy, one text at a time, nothing shared with it."""

import numpy as np


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def numpy_step(gates, memory):
  """(output, memory) of torch.nn.LSTM's i, f, g, o, with 1 added to the forget gate."""
  i, f, g, o = gates
  memory = sigmoid(f + 1) * memory + sigmoid(i) * np.tanh(g)
  return sigmoid(o) * np.tanh(memory), memory


def numpy_lstm(params, x):
  """Outputs [T, U], and the last output and memory, of x [T, I]."""
  units = params["recur"]["kernel"].shape[0]
  h, c, outputs = np.zeros(units), np.zeros(units), []
  for at in x:
    gates = np.einsum("i,igu->gu", at, params["read"]["kernel"]) + params["read"]["bias"]
    h, c = numpy_step(gates + np.einsum("p,pgu->gu", h, params["recur"]["kernel"]), c)
    outputs.append(h)
  return np.array(outputs), (h, c)

"""Serves a trained model on this machine: OpenAI's completions, labels, embeddings, a page.

python launch/serve.py --checkpoint=DIR [--port=8000] [--host=127.0.0.1]
python launch/serve.py --checkpoint=BASE --adapter=topic=DIR --adapter=mood=DIR

curl localhost:8000/v1/completions --json '{"prompt": "The old house", "max_tokens": 40}'
curl localhost:8000/classify --json '{"texts": ["The soup was warm."]}'
curl localhost:8000/embed --json '{"texts": ["one text", "another"]}'
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("serve")
CHECKPOINT = command_line.define_checkpoint()
ADAPTER = command_line.define_adapters()
PORT = flags.DEFINE_integer("port", DEFAULTS["port"], "TCP port to listen at; 0: any free one")
HOST = flags.DEFINE_string(
  "host", DEFAULTS["host"], "address to listen at; 0.0.0.0 lets other machines use the model"
)
WEIGHTS = flags.DEFINE_string(
  "weights",
  DEFAULTS["weights"],
  "float32, bfloat16 or int8: type of the weights of completions and labels",
)


def main():
  from gpt_jax.apps.serve import serve

  serve.run(CHECKPOINT.value, PORT.value, HOST.value, WEIGHTS.value, ADAPTER.value)


if __name__ == "__main__":
  command_line.run(main)

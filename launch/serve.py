"""Serves a trained model on this machine: OpenAI's completions, labels, embeddings, a page.

python launch/serve.py --checkpoint=DIR [--port=8000] [--host=127.0.0.1]
python launch/serve.py --checkpoint=BASE --adapter=topic=DIR --adapter=mood=DIR

curl localhost:8000/v1/completions --json '{"prompt": "The old house", "max_tokens": 40}'
curl localhost:8000/classify --json '{"texts": ["The soup was warm."]}'
curl localhost:8000/embed --json '{"texts": ["one text", "another"]}'
"""

import command_line

PROGRAM = command_line.program("serve")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)

"""Evaluates a language model on tasks of EleutherAI's lm-evaluation-harness.

Prints the harness's table. Its own tasks need the network for their data, once; --include_path
names a folder of task files of yours, which may read local JSON lines.

python launch/harness.py --checkpoint=DIR --tasks=lambada_openai,wikitext [--limit=100]
python launch/harness.py --checkpoint=DIR --tasks=my_task --include_path=my_tasks --out=results.json
"""

import command_line

PROGRAM = command_line.program("harness")

if __name__ == "__main__":
  command_line.run(PROGRAM.run)

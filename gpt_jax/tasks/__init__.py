"""Labeled tasks: official files -> rows -> examples -> packed batches. numpy only, never jax.

task.py       the Task type, one label per example, find and all_tasks; says how to add a task
answers/      other kinds of answers: labels, a number, tags, text, a span; one file each
transforms.py the input transformations of figure 1: text columns -> sequences
formats.py    texts -> one sequence with special tokens: GPT's, BERT's, RoBERTa's, T5's; truncation
readers.py    tables, JSON, Parquet and TFDS files -> rows
encoding.py   examples -> token ids, truncated to the context
packing.py    token ids -> batches of one shape
metrics.py    accuracy, F1, correlations, tables of each label; says how to add one
table.py      a task on the user's own files
story.py      the tasks on the embedded story world
glue.py       GLUE's nine tasks and its diagnostic set
reading.py    reading comprehension: RACE, Story Cloze, SQuAD
entailment.py SNLI and SciTail

May import: gpt_jax.data and the root files (config, errors, files, batch).
"""

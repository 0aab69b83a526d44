"""The parts of the server (programs/serve.py): what it reads, the model's thread, what it answers.

fields reads JSON; app has the routes, completions OpenAI's; engine runs the model, batched across
clients; connection ends slow clients; counters are for /metrics; page.html is for people.
"""

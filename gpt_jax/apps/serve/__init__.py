"""The server: launch/serve.py.

fields.py reads JSON; app.py has the routes, completions.py OpenAI's; engine.py runs the model,
batched across clients; serve.py ends slow clients; page.html is for people.
"""

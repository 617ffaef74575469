"""Run the submitted model, which is untrusted, in a separate process under limits.

`process` is the scorer's side and never imports torch. `server` is a process that has imported torch
and forks a `session` for each load of a model. `limits` restricts the session before it reads the file.
"""

"""The submitted model in a process of its own, under limits: foreign code and data.

`process` is the scorer's side and never imports torch. `server` is a process that has imported it and
forks a `session` for each load of a model; `limits` binds that session before it reads the file.
"""

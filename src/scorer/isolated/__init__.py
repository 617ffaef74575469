"""The submitted model's side, which is untrusted and runs in a separate process under limits.

`session` answers the requests of `scorer.process`; `limits` restricts it before it reads the file.
"""

"""Computed rows, one a key, on disk: what was computed is kept until its image changes.

`states` names a file's key, `store` keeps rows, `filling` computes those that are missing. The others say
what is computed: `checks` and `fingerprints` of images, `embedding` by a model, `views` that training draws.
"""

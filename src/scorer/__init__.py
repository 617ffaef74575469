"""A reimplementation of the challenge's scoring notebook, used by `score.py`.

It deliberately imports nothing of `guie`: a bug shared by the code that exports a submission and the
code that scores it would go unnoticed.
"""

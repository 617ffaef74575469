"""A reimplementation of the challenge's scoring notebook, used by `score.py`.

It imports nothing of `guie`, so that it can be copied and used alone.
"""

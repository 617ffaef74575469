"""The challenge's scoring notebook, rebuilt: what `score.py` is made of.

It stands apart on purpose and imports nothing of `guie`: a fault shared by the code that made a
submission and the code that judges it would go unseen.
"""

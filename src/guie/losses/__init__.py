"""Losses on embeddings. Each computes in fp32, whatever the model's precision.

Every loss takes unit-length embeddings (B, D) and class ids (B,), and returns (loss, logs).
"""

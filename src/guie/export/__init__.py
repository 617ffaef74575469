"""Export models: the challenge's submission, ONNX, .pt2, a hub folder; and prepare an upload to Kaggle.

A submission's TorchScript file is written by current PyTorch for the challenge's PyTorch 1.11.
`torchscript.package` traces the encoder with operators of 1.11, and scripts the preprocessing;
`torchscript.downgrade` rewrites the archive in the format of 1.11.
"""

"""Module names that programs for other TPU backends of PyTorch import. What they offer is in `torch.tpu`."""

"""Programs for a GPU, each with a twin in torch that runs everywhere; as operations of torch, `torch.ops.decodekit`."""

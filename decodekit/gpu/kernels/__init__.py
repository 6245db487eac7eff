"""Programs for a GPU, in Triton; each has a twin in torch beside it in `gpu`."""

"""How the bundled models are made: documents, tokenizer, network, training, evaluation."""

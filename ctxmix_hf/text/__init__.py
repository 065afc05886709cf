"""From what a user holds to what a model is called with: tokens, batches, targets, corpora."""

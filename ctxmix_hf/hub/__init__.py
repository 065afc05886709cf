"""Maps and instrumented models on the Hub. A cached map opens without a model."""

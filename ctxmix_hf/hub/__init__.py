"""Maps and instrumented models on the Hub: `MapStore`, and pointers to base models. A stored map opens without a model."""

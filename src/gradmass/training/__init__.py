"""Training: everything that touches a model. Needs the ``train`` extra (torch, transformers)."""

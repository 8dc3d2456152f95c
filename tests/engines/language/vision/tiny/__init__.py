"""What tiny checkpoints of some families are made of, beside their configurations."""

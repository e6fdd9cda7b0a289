"""What changed between two checkpoints: read them in pieces, measure, write them apart. Torch."""

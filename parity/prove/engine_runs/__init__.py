"""Small runs of the engine and of its parts, with what must come out of them."""

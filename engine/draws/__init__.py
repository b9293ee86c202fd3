"""Tokens drawn from logits: on the host and on the device."""

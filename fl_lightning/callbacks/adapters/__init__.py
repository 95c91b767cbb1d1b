"""Adapters: rules that average LoRA's thin matrices exactly or in different ranks, and what averaging them loses."""

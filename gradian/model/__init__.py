"""Base model, adapter, tokenizer and the LoRA blocks in them."""

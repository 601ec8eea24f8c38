"""Ways to launch a LoRA fine-tune."""

"""`gradian demo`: poison a fine-tune of a real model, then find the poison."""

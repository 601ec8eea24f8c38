"""Query gradients and the scores of an index against them."""

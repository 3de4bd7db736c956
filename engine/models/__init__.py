"""Model code: ForwardBatch in, logits out."""

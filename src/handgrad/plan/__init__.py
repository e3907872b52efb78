"""What a training step will cost, before anything is allocated: its own code, traced on tensors without memory."""

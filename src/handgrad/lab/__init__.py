"""The laboratory: the Transformer rebuilt from a recurrent network, one choice at a time, each measured."""

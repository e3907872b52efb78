"""Who may receive factors besides a sum: norms and gradients of single samples, several receivers, a weighing."""

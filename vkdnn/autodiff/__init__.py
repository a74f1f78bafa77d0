"""Reverse-mode differentiation of graphs; gradients are graphs too and run where everything runs."""

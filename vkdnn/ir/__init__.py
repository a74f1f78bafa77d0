"""The intermediate representation: nodes, the op table, builders and elementary definitions."""

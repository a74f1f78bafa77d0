"""The array functions that users call, by NumPy's names where NumPy has them."""

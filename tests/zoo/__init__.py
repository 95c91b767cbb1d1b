"""LightningModules and data sets of many kinds, as strangers write them. test_any_module.py trains them.

Each module makes its own weights from a fixed seed, and its docstring says what is unusual about it.
"""

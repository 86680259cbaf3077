"""The programs that `tpsl bench` races: each trains for ever, in turns.

    python PROGRAM.py FOLDER [SETTINGS]

Those that do not begin with `tpsl_` run in environments where this package is not installed: `tpsl bench` gives them a
copy of this folder. So they import only one another, PyTorch, and the library that they are made with.
"""

"""The programs that `race.py` races: each trains for ever, in turns.

    python PROGRAM.py FOLDER

All but `this_package.py` run in environments where this package is not installed, so they import only one another,
PyTorch, and the library that they are made with. The docstring of each says how its environment is made, with the
PyTorch of this one.
"""

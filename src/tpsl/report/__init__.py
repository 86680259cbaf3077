"""What runs promised, cost and leaked, for people to look at: a table for the terminal, one HTML page, a notebook.

A run folder becomes a `RunView`, a frozen tree; sections, tables and charts are made of views and know nothing else. A
chart is one function in `charts` that returns a specification; `svg` draws it in pages and notebooks, and
`tpsl_research.drawing` in papers.
"""

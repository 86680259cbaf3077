"""What runs promised, cost and leaked, for people to look at: a table for the terminal, one HTML page.

A run folder becomes a `RunView`, plain data; table and page are made of views and know nothing else.
"""

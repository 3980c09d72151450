"""What the user asked for: each option declared once, as a row of a table; from the tables come the
checked options, the parsers of the command lines, and the keywords of the Python API.

Not here: what comes of an option (../transfer/). Read next: option_rows.py, then copy_options.py.
"""

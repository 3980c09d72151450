"""What a copy counts, what it returns, and how it is shown: in lines, in a bar, to a program.

Not here: the command line's closing words (../cli/closing.py). Read next: progress.py.
"""

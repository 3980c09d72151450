"""Pieces of a copy's work: chunks of large files, packs of small ones; and the answers
that come for them.

Not here: who carries them (../lanes/). Read next: plan.py.
"""

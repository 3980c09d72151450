"""jobs.toml: what it may say, and the jobs that it makes.

Nothing here is run. Read next: config.py.
"""

"""jobs.toml: what it may say, and the jobs that it makes.

Nothing here is run. Read next: config.py.

For other rooms: config (Config, load), job (IF_RUNNING, Job).
"""

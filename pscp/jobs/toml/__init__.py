"""jobs.toml: what it may say, and the jobs that it makes.

Nothing here is run. Read next: config.py.

For other rooms: config (Config, find_config, is_default, load), job (IF_RUNNING, Job, check_after,
moves_of), schema (as_keys).
"""

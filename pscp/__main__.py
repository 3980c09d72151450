"""`python -m pscp` is the command `pscp`, also where another program has that name.

Not here: what it does.
Read next: cli/start.py.
"""

from pscp.cli.start import pscp

if __name__ == "__main__":
    pscp()

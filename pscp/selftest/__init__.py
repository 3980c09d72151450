"""pscp-test: copies of every kind against a private SSH server. No copy needs what is here.

May import calls/api.py, and little else.
Not here: the project's own tests.
Read next: main.py.
"""

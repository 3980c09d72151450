"""How the prompts of logins are answered: who is asked, and which answers are kept.

Not here: the connections (../connections.py). Read next: authenticator.py.

For other rooms: authenticator (Authenticator, Patience), tty.
"""

"""The calls of a program: copy() and Session, fan_out(), verify(), clean(), look().

Nothing here moves a byte. Read next: api.py.

For other rooms: api, call_arguments (fitted), cleaning (Cleaned, Leftover, clean), deliveries,
looking (Look, look), verifying (Verified, VerifyTerms, WANTED, verify).
"""

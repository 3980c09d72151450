"""The calls of a program: copy() and Session, their twins for asyncio, fan_out(), verify(),
clean(), look().

Nothing here moves a byte. Read next: api.py.

For other rooms: aio, api (Session, copy), cleaning (Cleaned, clean, show), deliveries (Delivery,
fan_out, side_by_side), looking (Look, look), verifying (Verified, VerifyTerms, WANTED, verify).
"""

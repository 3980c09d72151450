"""What a program calls: copy() and Session, their twins for asyncio, fan_out(), verify(), clean(),
look().

Nothing here moves a byte. Read next: api.py.
"""

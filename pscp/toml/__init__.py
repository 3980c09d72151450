"""Files in TOML that people write: how one is read, and each mistake in it told with its line.

Not here: what is in a file of jobs (../jobs/toml), or in that of a server (../serve).
Read next: reading.py, values.py.

For other rooms: positions (Place), reading (Form, Mistakes, nearest, parsed), values (File, Key,
Number, Seconds, Text, Texts, Word, after, closed, in_words, several, types_of, whole, with_unit).
"""

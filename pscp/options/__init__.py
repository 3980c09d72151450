"""The options of a user: each option declared once, as a row of a table; from the tables come the
checked options, the parsers of the command lines, and the keywords of the Python API.

Not here: what comes of an option (../transfer/). Read next: option_rows.py, then copy_options.py.

For other rooms: arguments, attributes (Attributes, Ids, ModeChange, Owner, changed_mode, known_id,
parse_modes, parse_owner), connection_options (ConnectionOptions, OF_A_CONNECTION), filters, habits
(NOT_IN_PLACE), keywords (as_keywords, as_typed, in_keywords, renamed, said, to_programs),
option_fields (OptionFields, ReplicateFields, SessionFields), option_pairs (OF_A_CLUSTER,
ONE_STREAM, check_no_cluster, check_several_hosts, is_given, not_of_a_stream), option_rows
(CHUNK_BYTES, Group, KEYWORDS, MANIFEST_FORMATS, MAX_AGE_S, MAX_CONNECTIONS, MAX_LIMIT_KBIT_S,
MIN_CHUNK_BYTES, TIMEOUT_S, with_keywords), options (CHOICES, Options, UNCOMPRESSED, check_concern,
check_names, with_fields), zfs_arguments, zfs_options (PLACING, PRUNABLE, ZfsOptions).
"""

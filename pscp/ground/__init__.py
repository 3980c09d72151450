"""The ground of everything else: errors, notes for -d, values and locations as they are typed,
signals, processes, which libraries are installed, the state folder, lines for people.

Nothing here knows of copies. Read next: errors.py.

For other rooms: contexts (holding, start_thread, with_context), counters (Counters, LargeFile,
LiveCounters, WorkerTotals, by_worker), errors, leaving (LET_GO_S, LoginProcess, let_go), libraries
(check_installed), locations (CONTROL, Location, MAX_PORT, Reach, absolute, as_location,
backups_beside, check_beside, check_direction, check_path, may_undo, parse_host, parse_location,
placed, plain_path, what_undoes), log, processes, signals (last_act, leave, raise_on_signals),
state, stops, terminal_text, values (GIB, KIB, LOGINS_MAX, MAX_SIZE_BYTES, MIB, check_address,
check_argument, check_range, check_tuple, no_such_option, parse_cpus, parse_kbit_s, parse_number,
parse_ports, parse_seconds, parse_size, show_size).
"""

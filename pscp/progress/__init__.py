"""The counts of a copy, its result, and how both are shown: in lines, in a bar, to a program.

Not here: the command line's closing words (../cli/closing.py). Read next: progress.py.

For other rooms: callbacks (FileEvent, ProgramReporter, log_notes), display (RichBar, make_reporter,
style_of), progress (CHANGES, CallbackReporter, Counters, Failure, JsonLines, LiveCounters,
NO_CIPHER, Notes, Outcome, Passing, PlainLines, Rate, Reporter, Result, Silent, Ticking,
WorkerTotals, checked, count, count_failed, format_bytes, format_duration, of_worker, problem_of,
what_became), progress_words (Piece, count, describe, files_and_folders, fit, some_of).
"""

"""The request of one copy, and what is known of it: its terms, its list of files, its journal,
what became of its files.

Not here: what is done about it (../walk/, ../ending/). Read next: copy_terms.py.

For other rooms: copy_terms (ALONE, CopyRequest, CopyTerms, FilePlaces, JobTerms, Movers, PoolTerms,
Select, folders_of), journal (FileNotes, Journal, PartUse, ctime_of, decide_part_use,
open_when_free, rest_of), moves (Moves, State), path_list, relative, results (IMMUTABLE, Results,
as_error), tokens (forget_tokens, remember_token, token_of_request), twins (Shown, ShownFile).
"""

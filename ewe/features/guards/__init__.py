"""Guards and filters: the middlewares that a key of a location asks for.

A *guard* lets a request go on, or answers in its place. A *filter* changes the response:

    request ─▶ Methods ─▶ Deny, Allow ─▶ RequestRate ─▶ Auth ─▶ the features
                 405          403           429         401        │
    client  ◀─ LimitRate ◀─ CacheControl ◀─ Expires ◀─ Headers ◀─┘

The declaration of a guard names its key, and the kind of the key's value (ewe.config.table_kinds). The class is
called with the value that this kind has read. Only a location whose settings name a guard pays for the guard.

Several processes may serve one site. What a guard has to count (requests, failed log-ins) is therefore in memory
that all of them share (gateway/shared_table.py). A guard is made before the processes are forked.
"""

"""Guards and filters: the middlewares that a key of a location asks for.

A *guard* lets a request go on, or answers in its place. A *filter* changes the response:

    request ─▶ Methods ─▶ Deny, Allow ─▶ RequestRate ─▶ Auth ─▶ the features
                 405          403           429         401        │
    client  ◀─ LimitRate ◀─ CacheControl ◀─ Expires ◀─ Headers ◀─┘

Each is made by from_table(value, place). The value is what the settings file says, and the place is how an error
message begins. Only a location whose settings name a guard pays for the guard.

Several processes may serve one site. What a guard has to count (requests, failed log-ins) is therefore in memory
that all of them share (gateway/shared_table.py). A guard is made before the processes are forked.
"""

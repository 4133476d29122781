"""Guards: what a location of the site asks before it answers, and what it does to the answer.

A *decider* lets a request go on, changes it, or answers in its place. A *finisher* returns another response:

    request ─▶ Methods ─▶ Addresses ─▶ RequestRate ─▶ Auth ─▶ the features
                 405         403          429         401        │
    client  ◀─ LimitRate ◀─ CacheControl ◀─ Expires ◀─ Headers ◀─┘

Each is made by from_table(value, place). The value is what the settings file says, and the place is how an error
message begins. Only a location whose settings name a guard pays for the guard.

Several processes may serve one site. What a guard has to count (requests, failed log-ins) is therefore in memory
that all of them share (gateway/shared_table.py). A guard is made before the processes are forked.
"""

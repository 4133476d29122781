"""Models of the server while they work, side by side, with the same clients on all of them.

    Director ─starts─▶ ModelProcess (ewe --trace PIPE)     one for each model
       │  ▲                   │ lines of the trace
       │  └── LiveStory ◀─────┘                            what each worker does now
       ├──▶ Clients                                        visitors, silent ones, slow ones, a flood
       └──▶ changes, twenty times a second ──▶ Page ──Server-Sent Events──▶ live.js

    choice.py         which model, with which options: the words of the command line
    model_process.py  a model as a process, its trace and its end
    guard.py          ends the models if ewe-watch is killed
    foreign.py        a server in any language as a process, and the events that the system shows of it
    live_story.py     the story of a running server in bounded memory
    behind_rows.py    the rows of X-Switch's engines and of the connections to databases
    meters.py         what a model costs, and the backlog in the kernel
    clients.py        the clients of the buttons, and what they saw
    demonstration.py  the site that all models serve: its pages wait at gates
    director.py       all of these together
    scenes.py         prepared demonstrations, which are also tests
    actions.py        what the buttons ask for
    run_page.py       the recordings of all models as one page, to share
    page.py           the page, as a feature of the server; serve.py runs that server
    command.py        the part of the command ewe-watch that needs all of these

Slow motion slows the clients and the pages of the demonstration, never only the picture.
"""

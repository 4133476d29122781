"""The grader, `ewe-grade`: checks of servers that students write, in any language (docs/grading.md).

The layers of the grader, from the bottom to the top:

    processes  sandbox          information from /proc; limits for the programs of students
    subject                     start, watch and stop the server under test
    responses  scene            clients that follow a schedule, and waits for events
    check                       a check: a name, a reason, and a function that plays a scene
    conversations progress workers hygiene faults stops     the checks
    scheme                      a lab's checks and points (labs/NAME/grading.toml)
    verdicts  formats  page     the results, in every format that a course needs
    grading  replay  cli        one run; the replay of a check; the command

Read scene.py first, then progress.py.
"""

"""The grader, `ewe-grade`: checks of servers that students write, in any language (docs/grading.md).

A grade is made in layers:

    processes  sandbox          what /proc tells; limits for the programs of students
    subject                     the server under test: started, watched, stopped
    responses  scene            clients that send what a schedule says, and wait for events
    check                       what a check is: a name, a reason, a function that plays a scene
    conversations progress workers hygiene faults stops     the checks
    scheme                      a lab's checks and points (labs/NAME/grading.toml)
    verdicts  formats  page     what was found, in every format that a course needs
    grading  replay  cli        one run, one run again, the command

Read scene.py first, then progress.py.
"""

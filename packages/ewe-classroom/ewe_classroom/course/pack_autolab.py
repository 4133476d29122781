"""The pack for Autolab: an assessment to import, and the image in which Tango grades.

    pool.tar ── import ─▶ Autolab: problems, scoreboard, handout        image/Dockerfile ─▶ Tango's image
                                │ autograde-Makefile, autograde.tar, the hand-in
                                ▼
    Tango: `make` as the account autograde ── sudo ewe-grade (root) ──▶ the server of the student (another account)
                                                   └─▶ the last line of output: the scores

https://docs.autolabproject.com/lab/ describes the two files, and https://docs.autolabproject.com/features/scoreboards/
the scoreboard.

Possible failures: the image of the assessment is not the one of the pack. The driver then says so and prints no
scores, because without another account a submission could write its own.
"""

from __future__ import annotations

import json

from ewe_classroom.course.archives import tar_of
from ewe_classroom.course.pack_plan import GRADING_S, TOOLS, Files, PackPlan
from ewe_classroom.course.pack_scripts import EWE_DIRECTORY, ZERO, install

WHEELS_OF_IMAGE = "/usr/local/lib/ewe-wheels"
RB = """\
require "AssessmentBase.rb"

module {module}
  include AssessmentBase

  def assessmentInitialize(course)
    super("{name}", course)
    @problems = []
  end

end
"""
# Tango runs this Makefile as the account `autograde`, in a directory of that account. It unpacks the hand-in into a
# separate directory, and the grader last. Without the two options of tar, a tar that runs as root would restore the
# owner root and setuid bits.
MAKEFILE = """\
all:
	@rm -rf handin grader && mkdir handin grader
	@if [ -f handin.tar ]; then tar xf handin.tar -C handin --no-same-owner --no-same-permissions || true; \\
	else cp -P {names} handin 2>&1 || true; fi
	@tar xf autograde.tar -C grader
	@sh grader/driver.sh
"""
DRIVER = """\
#!/bin/sh
# Autolab reads the last line. Only root can give the submission another account than `autograde`.
if ! sudo -n -l {ewe}/bin/ewe-grade > /dev/null; then
    echo 'This image cannot grade: it is not the one of image/Dockerfile in the pack.'
    exit 1
fi
grader=$PWD/grader
cd handin || exit 1
sudo -n {command}
status=$?
if [ "$status" -ge 128 ]; then
    sudo -n {command} {zero}
fi
exit 0
"""
IMAGE = """\
# The image that grades: the course's image for Tango with ewe. One image serves all labs of a language.
#
#   docker build --build-arg IMAGE=autograding_image -t ewe_image .
#
# Tango runs the Makefile of an assessment as the account `autograde`, which also owns the hand-in. A submission
# with that account could change its mark. In this image, `autograde` may run the grader as root, and nothing else.
ARG IMAGE=autograding_image
FROM $IMAGE
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv sudo{tools}
COPY wheels {wheels}
COPY install.sh /usr/local/lib/ewe-install.sh
RUN sh /usr/local/lib/ewe-install.sh \\
    && echo 'autograde ALL=(root) NOPASSWD: {ewe}/bin/ewe-grade' > /etc/sudoers.d/ewe \\
    && chmod 440 /etc/sudoers.d/ewe
"""
README = """\
# {title} for Autolab

1. Build the image that grades: `image/Dockerfile` says how. Copy it to each machine of Tango.
2. Course > Install Assessment > Import from tarball: `{name}.tar`. It brings {count} problems, one for each check
   ({points} points), the scoreboard, and the starter as the handout.
3. Enter the dates, and at "Edit Assessment > Autograder" the name of your image.
4. Submit the solution (`ewe-course solution {name}`) once: it has to get all points.

Students hand in `{handin}`{how}.
"""


def autolab(plan: PackPlan) -> Files:
    """Return an assessment that Autolab imports, and the image in which Tango grades.

    https://docs.autolabproject.com/lab/ says what the two files `autograde-Makefile` and `autograde.tar` do: Tango
    copies them and the hand-in into one directory, and runs make there.
    """
    name = plan.lab.name
    # Autolab takes one file from a student. Several files come as an archive, which MAKEFILE unpacks.
    handin = plan.handed_in[0] if len(plan.handed_in) == 1 and not plan.own else "handin.tar"
    driver = DRIVER.format(ewe=EWE_DIRECTORY, command=plan.command("--autolab", '"$grader"'), zero=ZERO)
    assessment = {
        f"{name}/{name}.yml": settings(plan, handin).encode(),
        f"{name}/{name}.rb": RB.format(module=name.capitalize(), name=name).encode(),
        f"{name}/autograde-Makefile": MAKEFILE.format(names=" ".join(plan.handed_in)).encode(),
        f"{name}/autograde.tar": tar_of({"driver.sh": driver.encode(), **plan.grading_files()}),
        f"{name}/{name}-handout.tar": tar_of(plan.starter_files(name)),
    }
    items = plan.checks
    tools = f" {TOOLS[plan.variant.name]}" if plan.variant.name in TOOLS else ""
    how = "" if handin in plan.handed_in else f", an archive of {', '.join((*plan.handed_in, *plan.own))}"
    readme = README.format(
        title=plan.lab.title, name=name, count=len(items), points=sum(item.points for item in items),
        handin=handin, how=how,
    )  # fmt: skip
    return {
        f"{name}.tar": tar_of(assessment),
        "image/Dockerfile": IMAGE.format(ewe=EWE_DIRECTORY, tools=tools, wheels=WHEELS_OF_IMAGE).encode(),
        "image/install.sh": ("#!/bin/sh\nset -e\n" + install(WHEELS_OF_IMAGE)).encode(),
        "README.md": readme.encode(),
        **plan.wheel_files("image/wheels"),
    }


def settings(plan: PackPlan, handin: str) -> str:
    """Return the properties of an assessment, as `Export assessment` writes them. JSON is also YAML.

    handin: the name that Autolab gives to the file of a student. Autolab refuses the score of a problem that it
    does not know, so each check is a problem.
    """
    problems = [
        {
            "name": item.check.name,
            "description": item.check.proves,
            "max_score": item.points,
            "optional": False,
        }
        for item in plan.checks
    ]
    # The scoreboard's columns, in the order of the figures of formats.to_autolab. asc: the lowest comes first.
    columns = [{"hdr": "Points"}, {"hdr": "Failed checks", "asc": 1}]
    table = {
        "general": {
            "name": plan.lab.name, "display_name": plan.lab.title, "description": plan.lab.summary,
            "handin_filename": handin, "handin_directory": "handin", "handout": f"{plan.lab.name}-handout.tar",
            "writeup": "", "max_grace_days": 0, "max_submissions": -1, "disable_handins": False, "max_size": 2,
            "category_name": "Lab",
        },
        "problems": problems,
        "autograder": {
            "autograde_timeout": GRADING_S, "autograde_image": "ewe_image", "release_score": True,
        },
        "scoreboard": {"banner": "", "colspec": json.dumps({"scoreboard": columns})},
    }  # fmt: skip
    return "---\n" + json.dumps(table, indent=2) + "\n"

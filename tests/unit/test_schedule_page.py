"""The examples of timers and CronJobs: they parse, and their commands exist."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.commands import parsed
from tests.support.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/reconcile-nightly.md"
UNITS = {
    block.text.partition("\n")[0].removeprefix("# "): block.text for block in blocks(PAGE, "ini")
}
CRON_JOBS = [YAML(typ="safe").load(block.text) for block in blocks(PAGE, "yaml")]


def unit(text):
    """Return the sections of a unit, of which one name may be given twice."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(text)
    return parser


def container(job):
    """Return the one container that a CronJob starts."""
    (started,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return started


def commands():
    """Return the command of each service and CronJob."""
    services = [text for name, text in UNITS.items() if name.endswith(".service")]
    started = [shlex.split(unit(text)["Service"]["ExecStart"]) for text in services]
    return started + [container(job)["command"] for job in CRON_JOBS]


@pytest.mark.parametrize("command", commands(), ids=lambda command: " ".join(command[1:3]))
def test_the_command_can_be_given(command, tmp_path):
    """Each command of the examples is valid with its options and values."""
    program, *arguments = command
    # The folders are the reader's.
    paths = [str(tmp_path / Path(word).suffix) for word in arguments if word.startswith("/")]
    parsed(*(paths.pop(0) if word.startswith("/") else word for word in arguments))
    assert program.endswith("reservation")


def test_there_is_a_timer_for_each_service():
    """Each service, for reconciling and for pruning, has a timer."""
    services = {name.removesuffix(".service") for name in UNITS if name.endswith(".service")}
    timers = {name.removesuffix(".timer") for name in UNITS if name.endswith(".timer")}
    assert services == timers == {"reservation-reconcile", "reservation-prune"}
    for name in timers:
        timer = unit(UNITS[f"{name}.timer"])
        assert timer["Timer"]["OnCalendar"]
        assert timer["Install"]["WantedBy"] == "timers.target"
        assert unit(UNITS[f"{name}.service"])["Service"]["Type"] == "oneshot"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_takes_the_units(tmp_path):
    """systemd accepts every section, name and value of the units."""
    for name, text in UNITS.items():
        program = re.sub(r"(?<=ExecStart=)\S+", shutil.which("true"), text)
        (tmp_path / name).write_text(program)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "reservation-" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


@pytest.mark.parametrize("job", CRON_JOBS, ids=lambda job: job["metadata"]["name"])
def test_a_cron_job_never_runs_beside_itself(job):
    """A CronJob has a schedule, no concurrency, a time limit and its volumes."""
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    spec = job["spec"]
    assert len(spec["schedule"].split()) == 5
    assert spec["concurrencyPolicy"] == "Forbid"
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] > 0
    mounted = {volume["name"] for volume in container(job).get("volumeMounts", [])}
    assert mounted == {volume["name"] for volume in pod.get("volumes", [])}

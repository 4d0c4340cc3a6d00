"""The examples for supervisors: they parse, and their times fit our own."""

import configparser
import json
import re
import shlex
import shutil
import subprocess

import pytest

from tests.support.commands import parsed
from tests.support.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/deploy.md"
KILLED_AFTER = 5.0  # seconds beyond the grace that the supervisor leaves its consumers


def example(language):
    """Return the one example of the page in a language."""
    (block,) = blocks(PAGE, language)
    return block.text


def unit():
    """Return the systemd unit's service, of which one name may be given twice."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(example("ini"))
    return parser["Service"]


def systemd():
    """Return the command of the unit, and the seconds until SIGKILL."""
    return shlex.split(unit()["ExecStart"]), float(unit()["TimeoutStopSec"])


def kubernetes():
    """Return the command of the deployment, and the seconds until SIGKILL."""
    text = example("yaml")
    (command,) = re.findall(r"^ *command: (.*)$", text, re.MULTILINE)
    (seconds,) = re.findall(r"^ *terminationGracePeriodSeconds: (\d+)$", text, re.MULTILINE)
    return json.loads(command), float(seconds)


@pytest.mark.parametrize("supervisor", [systemd, kubernetes])
def test_the_command_can_be_given_and_has_time_to_end(supervisor, monkeypatch):
    """The example's command is valid, and SIGKILL comes after all limits of the supervisor."""
    (program, *arguments), seconds = supervisor()
    monkeypatch.setenv("RESERVATION_DATABASE_URL", "host=/nowhere")
    assert program.endswith("reservation")
    assert arguments[0] == "start"
    assert parsed(*arguments)["grace"].total_seconds() + KILLED_AFTER < seconds


def test_the_unit_sends_a_signal_that_stops_us():
    """The unit sends the supervisor a signal that stops it."""
    assert unit()["KillSignal"] == "SIGTERM"
    assert unit()["KillMode"] == "mixed"
    assert unit()["Restart"] == "on-failure"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    """systemd accepts every section, name and value of the unit."""
    command, _ = systemd()
    path = tmp_path / "bank-account.service"
    path.write_text(example("ini").replace(command[0], shutil.which("true")))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_deployment_is_yaml_of_replicas_that_share():
    """The deployment is valid YAML, and its replicas share the categories."""
    text = example("yaml")
    try:
        import yaml
    except ImportError:
        depths = [0]
        for line in text.splitlines():
            indented, dashed = re.fullmatch(r"( *)(- )?[A-Za-z]\w*:( \S.*)?", line).group(1, 2)
            # A line goes at most one level deeper than the one before; a dash counts as one.
            assert len(indented) % 2 == 0
            assert len(indented) <= depths[-1] + 2, line
            depths.append(len(indented) + len(dashed or ""))
    else:
        spec = yaml.safe_load(text)["spec"]
        assert spec["replicas"] == 2
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (replicas,) = re.findall(r"^  replicas: (\d+)$", text, re.MULTILINE)
    command, _ = kubernetes()
    assert 1 < int(replicas) <= int(command[command.index("--partitions") + 1])
    assert re.search(r"^    type: RollingUpdate$", text, re.MULTILINE)

"""The image that the `Dockerfile` makes, on a base of Debian's packages instead of a registry's."""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from reservation import MessageStore
from reservation.admin import install
from tests.support.servers import Missing, OwnContainer

ROOT = Path(__file__).parents[2]
BASE = "reservation-test-base:12"
IMAGE = "reservation-test"
PACKAGES = "python3,python3-venv,ca-certificates"

# How this machine reaches the package index: files for the base, arguments for the build.
PIP = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
LENT = ("PIP_INDEX_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "no_proxy")

COMPONENT = """
from dataclasses import dataclass

from reservation import Component


@dataclass
class Deposit:
    deposit_id: str
    account_id: str


@dataclass
class Deposited(Deposit):
    pass


account = Component("account", id="account_id")


@account.handle(Deposit, key="deposit_id")
def deposit(command, entity, context):
    return context.follow(command, Deposited)
"""


@dataclass
class Deposit:
    """As the component of the container declares it."""

    deposit_id: str
    account_id: str


@pytest.fixture(scope="module")
def engine():
    """Give a client of the Docker engine."""
    docker = pytest.importorskip("docker")
    try:
        client = docker.from_env(timeout=300)
        client.ping()
    except docker.errors.DockerException as error:
        pytest.skip(f"no Docker engine answers: {error}")
    yield client
    client.close()


@pytest.fixture(scope="module")
def base(engine, tmp_path_factory):
    """Give the name of an image that has Python and access to the package index."""
    import docker

    try:
        engine.images.get(BASE)
    except docker.errors.ImageNotFound:
        _make_base(engine, tmp_path_factory.mktemp("base") / "root.tar")
    return BASE


def _make_base(engine, archive):
    if not shutil.which("mmdebstrap") or os.geteuid() != 0:
        pytest.skip("the base of the image is built by mmdebstrap as root, which is missing")
    hooks = [f"copy-in {path} {Path(path).parent}" for path in PIP if Path(path).exists()]
    try:
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}"]
            + [f"--customize-hook={hook}" for hook in hooks]
            + ["bookworm", str(archive)],
            capture_output=True,
            timeout=300,
            check=True,
        )
    except subprocess.SubprocessError as error:
        written = (error.stderr or b"").decode(errors="replace")[-500:]
        pytest.skip(f"mmdebstrap cannot build the base of the image: {error} {written}")
    name, _, tag = BASE.partition(":")
    engine.api.import_image_from_file(str(archive), repository=name, tag=tag)


@contextmanager
def _built(engine, name, **arguments):
    lent = {name: os.environ[name] for name in LENT if name in os.environ}
    engine.images.build(
        path=str(ROOT),
        tag=name,
        buildargs={**arguments, **lent},
        network_mode="host",
        rm=True,
        forcerm=True,
    )
    yield name
    engine.images.remove(name, force=True)


@pytest.fixture(scope="module")
def image(engine, base):
    """Give the name of the image."""
    with _built(engine, IMAGE, BASE=base) as name:
        yield name


@pytest.fixture
def image_with_spark(engine, base):
    """Give the name of an image in which Spark runs."""
    with _built(engine, f"{IMAGE}-spark", BASE=base, EXTRAS="metrics,spark,java") as name:
        yield name


@pytest.fixture
def server():
    """Give the address of a server that a container can reach."""
    try:
        container = OwnContainer()
    except Missing as missing:
        pytest.skip(str(missing))
    with container:
        yield container.address


@pytest.mark.timeout(600)
def test_an_image_runs_the_command_line_as_a_user_who_is_not_root(engine, image):
    """The image runs `reservation` as a user other than root, with the wheel alone."""
    assert engine.containers.run(image, ["--version"], remove=True).startswith(b"reservation, ")
    script = (
        "import importlib.util as u, json, os; print(json.dumps([os.geteuid() != 0, "
        "*(u.find_spec(n) is not None for n in ('prometheus_client', 'pyspark', 'tests'))]))"
    )
    printed = engine.containers.run(image, ["-c", script], entrypoint="python3", remove=True)
    assert json.loads(printed) == [True, True, False, False]


@pytest.mark.timeout(600)
def test_a_container_handles_commands_and_ends_when_it_is_stopped(engine, image, server, tmp_path):
    """A container runs the component of its folder and stops on SIGTERM."""
    (tmp_path / "deposits.py").write_text(COMPONENT)
    tmp_path.chmod(0o755)  # the user of the image is not the one of the tests
    with psycopg.connect(server, autocommit=True) as connection:
        install(connection)
    with MessageStore.open(server) as store:
        store.write([Deposit("d1", "123"), Deposit("d1", "123")], "account:command-123")
        container = engine.containers.run(
            image,
            ["start", "deposits:account"],
            detach=True,
            environment={"RESERVATION_DATABASE_URL": server},
            network_mode="host",
            volumes={str(tmp_path): {"bind": "/app", "mode": "ro"}},
        )
        try:
            _wait_for(container, {"event": "batch_committed", "category": "accountTransaction"})
            container.stop(timeout=60)
            assert container.wait()["StatusCode"] == 0
            assert [event.type for event in store.read_stream("account-123")] == ["Deposited"]
        finally:
            container.remove(force=True)


# Prints how many of Spark's classes Java has loaded from the file, of how many.
_LOADED = """
import json
from pathlib import Path
from spark_jobs.session.session import spark_session
with spark_session("") as spark:
    spark.range(3).count()
lines = Path("/tmp/classes.log").read_text().splitlines()
loaded = [line for line in lines if " org.apache.spark." in line]
print(json.dumps([sum("shared objects file" in line for line in loaded), len(loaded)]))
"""


@pytest.mark.timeout(900)
def test_an_image_with_spark_has_stored_its_classes(engine, image_with_spark):
    """Java loads them from a file of the image, also for a user who may write nothing there."""
    printed = engine.containers.run(
        image_with_spark,
        ["-c", _LOADED],
        entrypoint="python3",
        user="nobody",
        environment={"JDK_JAVA_OPTIONS": "-Xlog:class+load:file=/tmp/classes.log"},
        remove=True,
    )
    shared, loaded = json.loads(printed.splitlines()[-1])
    assert shared > loaded / 2


def _wait_for(container, event):
    """Return when the container has logged an event with these fields."""
    lines = []
    rest = b""
    for chunk in container.logs(stream=True, follow=True):
        *ended, rest = (rest + chunk).split(b"\n")
        for line in ended:
            lines.append(line.decode())
            if line.startswith(b"{") and event.items() <= json.loads(line).items():
                return
    raise AssertionError("\n".join(lines))

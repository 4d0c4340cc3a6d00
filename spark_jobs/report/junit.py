"""A report as JUnit XML, which systems for continuous integration show as tests."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from spark_jobs.common.result import Report
from spark_jobs.report.thresholds import NAMES, ExceededThreshold
from spark_jobs.report.words import at, differences, key, shown, type_


def render_junit(report: Report, reached: Sequence[ExceededThreshold]) -> str:
    """Return a suite for the component, with a case for each name that a threshold may have.

    A case fails if a threshold that fails the run is exceeded. Other counts, and the warnings, are
    the output of the case. Characters that XML cannot contain are not printable, so they are
    written as escapes.
    """
    suites = Element("testsuites", name="reservation reconcile")
    failing = {
        exceeded.threshold.name: exceeded for exceeded in reached if exceeded.threshold.failing
    }
    warning = {
        exceeded.threshold.name: exceeded for exceeded in reached if not exceeded.threshold.failing
    }
    suite = SubElement(
        suites,
        "testsuite",
        name=shown(report.component),
        timestamp=report.time.isoformat(),
        tests=str(len(NAMES)),
        failures=str(len(failing)),
        errors="0",
        skipped="0",
        time="0",
    )
    if report.since is not None:
        known = SubElement(suite, "properties")
        SubElement(known, "property", name="since", value=str(report.since))
    for name in NAMES:
        case = SubElement(
            suite, "testcase", classname=f"reconcile.{shown(report.component)}", name=name, time="0"
        )
        if name in failing:
            failure = SubElement(case, "failure", message=str(failing[name]), type=name)
            failure.text = _rows(report, name)
        said = [f"Warning: {warning[name]}"] if name in warning else []
        if name not in failing and report.outstanding(name):
            said.append(f"{report.outstanding(name):,} counted")
            said.extend(filter(None, [_rows(report, name)]))
        if name in report.accepted_counts:
            said.append(f"{report.accepted_counts[name]:,} accepted")
        if said:
            SubElement(case, "system-out").text = "\n".join(said)
    written = tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{written}\n'


def _rows(report: Report, name: str) -> str:
    """Return the sample rows of a finding, a line each."""
    return "\n".join(
        f"{type_(finding)} at {shown(finding.stream_name)}, key {key(finding)}, position "
        f"{shown(finding.position)}, global position {finding.global_position}, "
        f"id {shown(finding.message_id)}, {at(finding.time)} UTC"
        + (f", differs in {differences(finding)}" if finding.differences else "")
        for finding in report.findings
        if finding.finding == name
    )

"""Verdicts over releases: the matrix of writers and readers, the reasons and mends, and what each gate says."""

import pytest

from flyte_torchrun.backend import Overrides
from flyte_torchrun.compat import Verdict, check
from flyte_torchrun.schema import READERS, reader_of
from tests.backend.vectors import cases, flyte_of, load

CONTAINER = {"image": "img:1", "args": ["x"], "resources": {"requests": [{"name": "CPU", "value": "500m"}]}}
ELASTIC = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 2, "nprocPerNode": 1, "maxRestarts": 3}


def template(custom, version):
    return {"type": "pytorch", "taskTypeVersion": version, "custom": custom, "container": CONTAINER}


ONE = {"replicas": 2}
# The writers of the wire contract's matrix.
WRITERS = {
    "W0": template({"workers": 2}, 0),
    "W0e": template({"workers": 2, "elasticConfig": ELASTIC}, 0),
    "WX": template({"workerReplicas": {**ONE, "resources": {}}, "masterReplicas": {"replicas": 1, "resources": {}}}, 0),
    "WXe": template({"workerReplicas": ONE, "elasticConfig": ELASTIC}, 0),
    "W1": template({"workerReplicas": {**ONE, "resources": {}}, "masterReplicas": {"replicas": 1, "resources": {}}}, 1),
    "W1e": template({"workerReplicas": ONE, "elasticConfig": ELASTIC}, 1),
    "WC": template({"workerReplicas": {"common": ONE}, "elasticConfig": ELASTIC}, 1),
    "WB": template({"workerReplicas": {"replicas": 4, "common": ONE}, "elasticConfig": ELASTIC}, 1),
}
H, C, D, R = Verdict.HONOURED, Verdict.CHANGED, Verdict.DROPPED, Verdict.REJECTED
NAMES = ["R0", "R1", "R2", "R3b", "R4b", "R5a", "R6a", "R7", "R8", "R9b", "R10", "R11b"]
# What the readers make of each, operators aside (their part is below).
MATRIX = {
    "W0": [H, H, H, H, H, H, H, H, H, H, D, H],
    "W0e": [D, D, H, H, H, H, H, H, H, H, D, H],
    "WX": [D, R, R, R, R, R, R, D, D, D, D, R],
    "WXe": [D, R, R, R, R, R, R, D, D, D, D, R],
    "W1": [D, R, R, H, H, H, H, H, C, H, D, C],
    "W1e": [D, R, R, D, H, H, H, H, H, H, D, H],
    "WC": [D, R, R, R, R, R, H, H, H, H, D, H],
    "WB": [D, R, R, D, D, D, H, H, H, H, D, H],
}


def of_readers(report, name):
    """The worst that is found of a reader, whatever the operator."""
    return max(
        (each.verdict for each in report.findings if name in each.flyte and not each.operators and each.verdict > 1),
        default=H,
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_the_matrix_of_writers_and_readers_is_reproduced_cell_by_cell(writer):
    report = check(WRITERS[writer])
    found = {name: of_readers(report, name) for name in NAMES}
    assert found == dict(zip(NAMES, MATRIX[writer], strict=True))


@pytest.mark.parametrize(
    ("writer", "reader", "operator", "expected"),
    [
        ("W0", "R4b", "1.7.0", H),  # (a) without a Master's replicas, operator 1.8 refuses
        ("W0", "R4b", "1.8.0", R),
        ("W0", "R5a", "1.8.0", H),
        ("W0e", "R3b", "1.8.0", H),  # ... elastic jobs pass
        ("WX", "R0", "1.7.0", D),  # (b) no workers; one is made and deleted
        ("WX", "R0", "1.9.0", R),
        ("WXe", "R7", "1.8.0", D),  # (c) no pods at all
        ("WXe", "R7", "1.9.0", R),
    ],
)
def test_what_an_operator_adds_is_reproduced(writer, reader, operator, expected):
    assert check(WRITERS[writer]).verdict_of(reader, operator) == expected


@pytest.mark.parametrize(
    ("writer", "flyte", "path", "mend"),
    [
        ("WC", "1.12", "task", "write the same values in the replica's own fields 1 to 4, too: `common` is read since"),
        (
            "WB",
            "1.12",
            "workerReplicas.common.replicas",
            "write the same values in the replica's own fields 1 to 4, too",
        ),
        ("WX", "1.14", "task", "set task_type_version 1: flytekit 1.7.0, 1.7.1 and 1.2.14 to 1.2.17"),
        ("W1e", "1.6", "task", "version 1 is read since Flyte 1.7"),
        ("W0e", "1.5", "elasticConfig.maxRestarts", "use Flyte 1.6 or newer"),
        ("W1e", "1.8", "container.resources", "write the resources in the replica, too"),
        ("W1", "1.15.3", "container.resources", "name cpu and memory in the replica's resources, and leave out"),
        ("W1e", "2.0.10", "task", "use Flyte 2.0.24 or newer"),
    ],
)
def test_a_finding_says_what_mends_it(writer, flyte, path, mend):
    found = [each for each in check(WRITERS[writer], flyte=flyte, operator="1.7").findings if each.path == path]
    assert found
    assert found[0].mend.startswith(mend)
    assert found[0].reason
    assert path in str(found[0])


@pytest.mark.parametrize(
    ("custom", "overrides", "path", "reason"),
    [
        (
            {"workerReplicas": ONE, "elasticConfig": {**ELASTIC, "minReplicas": 4}},
            {},
            "elasticConfig.minReplicas",
            "4 is more",
        ),
        ({"workerReplicas": {"replicas": 9}, "elasticConfig": ELASTIC}, {}, "workerReplicas.replicas", "9 pods start"),
        (
            {"workerReplicas": ONE, "elasticConfig": {**ELASTIC, "minReplicas": 5, "maxReplicas": 6}},
            {},
            "workerReplicas.replicas",
            "2 pods start, the group waits",
        ),
        (
            {"workerReplicas": {"replicas": 0}, "elasticConfig": ELASTIC},
            {},
            "workerReplicas.replicas",
            "an elastic job without",
        ),
        (
            {"workerReplicas": ONE, "elasticConfig": {**ELASTIC, "nprocPerNode": 0}},
            {},
            "elasticConfig.nprocPerNode",
            "0 is not",
        ),
        (
            {"workerReplicas": ONE, "runPolicy": {"backoffLimit": 3}},
            {},
            "workerReplicas.restartPolicy",
            "pods are never",
        ),
        ({"workerReplicas": {**ONE, "resources": {}}}, {}, "workerReplicas.resources", "{} is not unset"),
        (
            {"workerReplicas": {**ONE, "resources": {"limits": [{"name": "GPU", "value": "1"}]}}},
            {},
            "workerReplicas.resources",
            "it names neither cpu nor memory",
        ),
        ({"workerReplicas": ONE}, {"name": "a" * 60}, "task", "a pod's name would have 69 characters"),
    ],
)
def test_advice_is_given_where_every_release_is_of_one_mind(custom, overrides, path, reason):
    report = check(template(custom, 1), flyte="1.14.1", overrides=Overrides(**overrides))
    advice = {each.path: each.reason for each in report.findings if each.verdict is Verdict.ADVICE}
    assert advice[path].startswith(reason)


def test_a_variable_of_the_task_and_the_execution_is_found_twice():
    given = {**WRITERS["W1e"], "container": {**CONTAINER, "env": [{"key": "A", "value": "1"}]}}
    report = check(given, flyte="1.16.8", operator="1.9.3", overrides=Overrides(environment={"A": "2"}))
    assert [(each.path, each.verdict) for each in report.findings] == [
        ("task", R),
        ("container.env[A]", Verdict.ADVICE),
    ]


def test_a_zero_that_reads_as_unset_is_dropped_everywhere():
    report = check(
        template({"workerReplicas": ONE, "runPolicy": {"backoffLimit": 0}}, 1), flyte=">=1.7", operator="1.7"
    )
    [finding] = [each for each in report.findings if each.path == "runPolicy.backoffLimit"]
    assert (finding.verdict, finding.mend) == (D, "leave it out, or write at least 1: 0 cannot be told from unset")
    assert len(finding.flyte) == sum(reader.is_version_read and reader.is_linked for reader in READERS)


def test_a_plain_task_is_honoured_everywhere():
    report = check({**WRITERS["W1e"], "type": "python-task"})
    assert (report.findings, report.verdict) == ((), H)


@pytest.mark.parametrize("case", [name for name, case in cases().items() if not case.get("ctx")])
def test_a_task_is_rejected_by_just_the_readers_that_refused_it_when_run(case):
    report = check(cases()[case]["template"])
    for finding in report.findings:
        assert finding.flyte
        assert finding.reason
    refused = {
        name for finding in report.findings if finding.verdict is R and not finding.operators for name in finding.flyte
    }
    recorded = load("readers.json")["readers"]
    ran = {reader_of(flyte_of(reader))[0].name: "error" in answers[case] for reader, answers in recorded.items()}
    assert refused & ran.keys() == {name for name, is_refused in ran.items() if is_refused}

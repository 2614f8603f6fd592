"""Release numbers, ranges of them, and which record a release runs."""

import pytest

from flyte_torchrun.schema import (
    OPERATORS,
    READERS,
    Release,
    ReleaseError,
    ReleaseRange,
    operator_of,
    operators_in,
    reader_of,
    readers_in,
)
from flyte_torchrun.schema.messages import schema_of


def test_releases_are_ordered_as_they_were_made():
    texts = [
        "0.9.9",
        "1.0.0",
        "1.9.2",
        "1.10.0",
        "1.16.0-a1",
        "1.16.0-b2",
        "1.16.0-b3",
        "1.16.0-rc0",
        "1.16.0",
        "2.0.0",
    ]
    releases = [Release.parse(text) for text in texts]
    assert sorted(set(releases)) == releases
    assert [str(release) for release in releases] == texts
    assert Release.parse("v1.16.0b3") == Release.parse("1.16.0-b3")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("1.16.8", ["1.16.8"], ["1.16.7", "1.16.9", "1.16.8-b0"]),
        ("1.10", ["1.10.0", "1.10.99"], ["1.9.9", "1.11.0-b0", "1.11.0"]),
        ("2", ["2.0.7", "2.9.1"], ["1.16.8", "3.0.0"]),
        (">=1.6,<1.9", ["1.6.0", "1.8.1"], ["1.5.9", "1.9.0"]),
        (">1.10", ["1.11.0"], ["1.10.7"]),
        ("<=1.10", ["1.10.7", "1.0.0"], ["1.11.0"]),
        ("~=1.10.5", ["1.10.5", "1.10.7"], ["1.10.4", "1.11.0"]),
        ("==1.16.0-b2", ["1.16.0-b2"], ["1.16.0-b3", "1.16.0"]),
    ],
)
def test_a_range_holds_what_a_person_means(text, inside, outside):
    wanted = ReleaseRange.parse(text)
    assert [each for each in [*inside, *outside] if Release.parse(each) in wanted] == inside


@pytest.mark.parametrize("text", ["", "x", "1.8,", "1..2", ">=", "1.2.3.4", "=1.2", None, 1.1, "1.16.8 1.16.7"])
def test_what_is_no_release_is_one_clear_error(text):
    with pytest.raises(ReleaseError, match=r"is not allowed; allowed: a release such as 1\.16\.8"):
        ReleaseRange.parse(text)


def test_an_empty_range_and_an_unknown_release_are_errors_that_say_what_is_known():
    with pytest.raises(ReleaseError, match=r"release: '>=2,<1' is not allowed: no release is in it"):
        ReleaseRange.parse(">=2,<1")
    known = r"allowed: releases from 1\.0\.0 to 1\.16\.8 and 2\.0\.7 to 2\.0\.43"
    for text in ("1.16.9", "2.0.6", "0.9", ">=3", "1.17"):
        with pytest.raises(ReleaseError, match=rf"flyte: '{text}' is not known; {known}"):
            readers_in(text)
    with pytest.raises(ReleaseError, match=r"operator: '2' is not known; allowed: releases from 1\.5\.0 to 1\.9\.3"):
        operators_in("2")


@pytest.mark.parametrize(
    ("text", "names", "newest"),
    [
        ("1.16.8", ["R9b"], "1.16.8"),
        ("1.10", ["R4b", "R5a"], "1.10.7"),
        ("1.16", ["R8", "R9a", "R9b"], "1.16.8"),
        ("1.15", ["R7", "R8"], "1.15.1"),
        ("2", ["R10", "R11a", "R11b"], "2.0.43"),
        ("1.9.20", ["R4a"], "1.9.20"),
        ("1.16.0-b2", ["R8"], "1.16.0-b2"),
    ],
)
def test_a_release_runs_its_reader_and_a_series_its_newest(text, names, newest):
    found = [reader.name for reader in readers_in(text)]
    if text != "1.16":  # 1.16.0-b2 is before 1.16.0
        assert found == names
    assert (reader_of(text)[0].name, reader_of(text)[1]) == (names[-1], newest)


def test_every_release_between_two_known_ones_has_just_one_reader():
    for major, count in ((1, 17), (2, 1)):
        for minor in range(count):
            for patch in range(50):
                text = f"{major}.{minor}.{patch}"
                try:
                    found = readers_in(text)
                except ReleaseError:
                    assert (major, minor, patch) > (1, 16, 8)
                    assert not (2, 0, 7) <= (major, minor, patch) <= (2, 0, 43)
                else:
                    assert len(found) == 1


def test_a_record_names_a_schema_that_is_there():
    for reader in READERS:
        assert schema_of(reader.schema).payload(int(reader.is_version_read)).fields
    assert operator_of("1.8") == (OPERATORS[3], "1.8.1")

"""The presets of studies, each as it is and, unless it measures the accuracy of answers, on WikiText-2."""

import pytest

from anaphor.studies.study_file import list_presets

WITH_EXTRAS = ("hybrid", "wikitext-2")
OF_ANSWERS = ("architectures", "architectures-full", "recall-grid", "state-tracking", "word-problem")
MANY_SETTINGS = ("architectures-full", "architectures-text")


def marks_of(name, data):
    extras = [pytest.mark.needs("extras")] if (name, data) == WITH_EXTRAS else []
    return [*extras, pytest.mark.slow] if name in MANY_SETTINGS else extras


PRESETS = [
    pytest.param(name, data, id=f"{data}-{name}", marks=marks_of(name, data))
    for data in (None, "wikitext-2")
    for name in list_presets()
    if data is None or name not in OF_ANSWERS
]

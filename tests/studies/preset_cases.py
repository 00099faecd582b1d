"""The presets of studies, each as it is and, unless it measures the accuracy of answers, on WikiText-2."""

import pytest

from anaphor.studies.study_file import list_presets

WITH_EXTRAS = ("hybrid", "wikitext-2")
OF_ANSWERS = ("architectures", "architectures-full", "recall-grid", "state-tracking", "word-problem")

PRESETS = [
    pytest.param(
        name, data, id=f"{data}-{name}", marks=[pytest.mark.needs("extras")] if (name, data) == WITH_EXTRAS else []
    )
    for data in (None, "wikitext-2")
    for name in list_presets()
    if data is None or name not in OF_ANSWERS
]

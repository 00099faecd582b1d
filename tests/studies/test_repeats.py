"""The same setting twice: a search may draw it again, a list may name it again. It is trained once and told once."""

from anaphor.studies.engines import JobResult
from anaphor.studies.report import list_settings
from studies.here import logged
from studies.pretended import Pretending

ONE = "parameters: {width: {values: [4]}}\nseeds: 1"


class Drawn:
    """Proposes what it is told to, and remembers what came of it."""

    def __init__(self, settings):
        self.settings, self.told = list(settings), []

    @property
    def left(self):
        return len(self.settings)

    def next(self):
        return self.settings.pop(0) if self.settings else None

    def report(self, setting, value):
        self.told.append((setting, value))


def run(study, monkeypatch, plan):
    monkeypatch.setattr("anaphor.studies.study.make_proposals", lambda spec, folder, is_shared: plan)
    study.run()


def places(study, *widths):
    """New objects each time, as a search gives them."""
    return [next(one for one in study.spec.settings() if one.parameters["width"] == width) for width in widths]


def test_a_setting_drawn_twice_is_trained_once_while_others_run(begin, monkeypatch):
    study = begin(engine := Pretending(slots=3, held=2))
    plan = Drawn(places(study, 4, 4, 8, 4))
    drawn = list(plan.settings)
    run(study, monkeypatch, plan)
    assert len(engine.jobs) == len(set(engine.jobs)) == 2
    assert [dict(one.parameters) for one in list_settings(study)] == [{"width": 4}, {"width": 8}]
    values = {id(setting): value for setting, value in plan.told}
    assert set(values) == set(map(id, drawn)), "a search hears of every setting that it proposed"
    assert values[id(drawn[0])] == values[id(drawn[1])] == values[id(drawn[3])] != values[id(drawn[2])]


def test_a_setting_drawn_again_after_it_failed_is_not_trained_again_in_this_start(begin, monkeypatch):
    study = begin(engine := Pretending(ends=lambda job: JobResult(1, "no room")), ONE)
    plan = Drawn(places(study, 4, 4))
    run(study, monkeypatch, plan)
    assert len(engine.jobs) == 1
    assert [value for _, value in plan.told] == [None, None]
    again = begin(healed := Pretending(), ONE)
    run(again, monkeypatch, Drawn(places(again, 4, 4)))
    assert len(healed.jobs) == 1, "the next start tries it once more"


def test_two_names_of_one_setting_share_its_cells(begin):
    kinds = "{plain: {}, small: {width: 4}, tiny: {width: 4}}"
    study = begin(engine := Pretending(slots=3, held=2), f"parameters: {{kind: {{settings: {kinds}}}}}\nseeds: 1")
    study.run()
    assert len(engine.jobs) == len(set(engine.jobs)) == 2
    assert [setting.parameters["kind"] for setting in list_settings(study)] == ["plain", "small", "tiny"]
    assert study.value(study.cells[1]) == study.value(study.cells[2])
    assert [status for _, status, _ in study.callback.calls].count("finished") == 3
    events = [line["event"] for line in logged(study)]
    assert events.count("finished") == 2
    study.freeze(study.cells[1].setting)
    study.test(study.cells)
    assert sorted(what for what, _ in engine.jobs) == ["test", "test", "train", "train"]


def test_a_list_that_names_a_setting_twice_has_one_row_of_it(begin):
    study = begin(
        Pretending(slots=3, held=2), "method: list\nparameters: [{width: 4}, {width: 8}, {width: 4}]\nseeds: 1"
    )
    study.run()
    assert [dict(one.parameters) for one in list_settings(study)] == [{"width": 4}, {"width": 8}]

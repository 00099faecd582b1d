"""Folders of runs and studies that someone else sends: each is there to break, to hang or to fill what lists it."""

import json
import os
import re

from web.pretended_runs import add_cell, write_run, write_study

DEEP = 900
HUGE = "9" * 400
"""A number beyond every float."""


def nest(levels):
    """A list in a list, and so on."""
    return "[" * levels + "]" * levels


def write_log(folder, *values):
    (folder / "log.jsonl").write_text("".join(f"{value}\n" for value in values))


def write_result(folder, **values):
    (folder / "result.json").write_text(json.dumps(values))


def deep_spec(folder):
    write_run(folder).spec.write_text(f"format: 2\ntask: lm\ndata: {{data: {nest(600)}}}\n")


def deep_flow_mapping(folder):
    write_run(folder).spec.write_text(f"format: 2\ntask: lm\ndata: {{data: {'{a: ' * 400}1{'}' * 400}}}\n")


def deep_result(folder):
    write_run(folder).result.write_text(f'{{"status": "finished", "valid": {{"loss": 1, "x": {nest(DEEP)}}}}}')


def deep_metrics(folder):
    metrics = write_run(folder).metrics
    metrics.write_text(f'{{"step": 1, "valid": {{"loss": 1, "x": {nest(DEEP)}}}, "y": {nest(DEEP)}}}\n')


def huge_numbers_in_metrics(folder):
    run = write_run(folder, result=None)
    run.metrics.write_text(f'{{"step": 1, "epoch": {HUGE}, "valid": {{"loss": {HUGE}}}}}\n')


def huge_numbers_in_result(folder):
    run = write_run(folder)
    run.result.write_text(
        f'{{"status": "finished", "steps": {HUGE}, "parameters": -{HUGE}, "valid": {{"loss": {HUGE}}}}}'
    )


def huge_numbers_in_spec(folder):
    run = write_run(folder)
    run.spec.write_text(run.spec.read_text().replace("epochs: 4.0", f"epochs: {HUGE[:99]}\n  steps: 1e400"))


def other_kinds_in_spec(folder):
    run = write_run(folder)
    run.spec.write_text(
        "format: 2\ntask: [1]\ndata: {data: {a: 1}}\ntraining: {seed: [[]], steps: no, epochs: {}, select: {a: 2}}\n"
    )


def dates_as_names(folder):
    write_run(folder).spec.write_text("format: 2\ntask: lm\ndata: {2020-01-01: 1, [a]: 2, 1: 3}\n")


def other_kinds_in_result(folder):
    run = write_run(folder)
    run.result.write_text('{"status": [1], "valid": [], "test": 7, "steps": "x", "parameters": {}, "reason": {}}')


def other_kinds_in_metrics(folder):
    run = write_run(folder, result=None)
    run.metrics.write_text('{"step": 1, "valid": []}\n{"step": 2, "valid": {"loss": {}}, "epoch": []}\n{"step": 3}\n')


def surrogates(folder):
    run = write_run(folder)
    run.result.write_text('{"status": "diverged", "reason": "\\ud800 and \\u2028", "valid": {"\\udfff": 1}}')
    run.metrics.write_text('{"step": 1, "\\ud800": 1, "valid": {"\\ud800": 1}}\n')


def facts_of_other_kinds(folder):
    run = write_run(folder, task="elsewhere", result=None)
    (run.checkpoints / "step-1" / "facts.json").write_text(
        f'{{"facts": {{"progress": {{"best_value": {nest(DEEP)}}}}}}}'
    )


def header_of_many_texts(folder):
    header = {"model": {"shape": ["x" * 1000, 3_000_000]}}
    write_weights(folder, header)


def header_of_many_dimensions(folder):
    write_weights(folder, {"model": {"shape": [10**9] * 200_000}})


def header_of_huge_numbers(folder):
    write_weights(folder, f'{{"model": {{"shape": [{"9" * 4000}, {"9" * 4000}]}}}}')


def write_weights(folder, header):
    run = write_run(folder, result=None)
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (run.checkpoints / "step-1" / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)


def sparse(name):
    def write(folder):
        write_run(folder, result=None)
        with (folder / name).open("ab") as file:
            file.truncate(100 * 2**30)

    return write


def sparse_header(folder):
    run = write_run(folder, result=None)
    with (run.checkpoints / "step-1" / "model.safetensors").open("wb") as file:
        file.write((2**36).to_bytes(8, "little"))
        file.truncate(100 * 2**30)


def fifo(name):
    def write(folder):
        write_run(folder)
        path = folder / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)

    return write


def link(name, target):
    def write(folder):
        write_run(folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return write


def many_combinations(folder):
    values = {"values": list(range(10))}
    write_study(folder, parameters={f"axis{number}": values for number in range(20)})


def many_combinations_without_seeds(folder):
    many_combinations(folder)
    file = folder / "study.yaml"
    file.write_text(re.sub(r"(?m)^seeds:.*\n(- .*\n)*", "", file.read_text()))
    assert "seeds" not in file.read_text()


def many_values(folder):
    values = {"values": list(range(2000))}
    write_study(folder, parameters={"width": values, "layers": values}, seeds=list(range(1000)))


def many_trials(folder):
    parameters = {"lr": {"min": 0.1, "max": 0.2}}
    write_study(folder, method="random", trials=10**18, parameters=parameters, seeds=list(range(1000)))


def list_as_seed(folder):
    add_cell(write_study(folder), {"width": 4}, 0)
    write_result(folder, cells=[{"parameters": {"width": 4}, "seed": [], "run": "a"}])


def list_as_seed_in_log(folder):
    write_log(write_study(folder), '{"cell": "a", "parameters": {"width": 4}, "seed": [[]]}')


def deep_parameters(folder):
    write_study(folder)
    (folder / "result.json").write_text(
        f'{{"cells": [{{"parameters": {{"width": {nest(DEEP)}}}, "seed": 0, "run": "a"}}]}}'
    )
    write_log(folder, f'{{"cell": "a", "parameters": {{"width": {nest(DEEP)}}}, "seed": 0}}')


def deep_axes(folder):
    write_study(folder)
    (folder / "study.yaml").write_text(
        f"task: lm\nmetric: loss\nseeds: [0]\nparameters: {{width: {{values: {nest(600)}}}}}\n"
    )


def parameters_of_other_kinds(folder):
    write_study(folder, parameters=[1, {"width": {"a": {"b": 1}}}, {"width": [1, [2, {"c": 3}]]}], seeds=[[], {}, 1])


def huge_loss_of_a_cell(folder):
    cell = add_cell(write_study(folder), {"width": 4}, 0)
    (cell / "result.json").write_text(f'{{"status": "finished", "valid": {{"loss": {HUGE}, "perplexity": -{HUGE}}}}}')


def cells_of_other_kinds(folder):
    write_study(folder)
    write_result(folder, cells=[1, {}, {"parameters": {"width": {"a": 1}}, "seed": {}, "run": []}, {"parameters": 3}])


def long_table(folder):
    write_study(folder)
    write_result(folder, cells=[])
    with (folder / "table.csv").open("wb") as file:
        file.truncate(100 * 2**30)


FOLDERS = {
    write.__name__: write
    for write in (
        deep_spec, deep_flow_mapping, deep_result, deep_metrics, huge_numbers_in_metrics, huge_numbers_in_result,
        huge_numbers_in_spec, other_kinds_in_spec, dates_as_names, other_kinds_in_result, other_kinds_in_metrics,
        surrogates, facts_of_other_kinds, header_of_many_texts, header_of_many_dimensions, header_of_huge_numbers,
        sparse_header, many_combinations, many_combinations_without_seeds, many_values,
        many_trials, list_as_seed, list_as_seed_in_log,
        deep_parameters, deep_axes, parameters_of_other_kinds, huge_loss_of_a_cell, cells_of_other_kinds, long_table,
    )
} | {
    f"a sparse {name}": sparse(name) for name in ("metrics.jsonl", "samples.txt", "result.json", "spec.yaml")
} | {
    f"a fifo as {name}": fifo(name) for name in ("metrics.jsonl", "samples.txt", "result.json", ".lock", "status.json")
} | {
    f"a device as {name}": link(name, "/dev/zero") for name in ("metrics.jsonl", "samples.txt", "result.json", ".lock")
}  # fmt: skip

"""The reports of a graded submission, for the teacher and for the student: HTML files without scripts or network.

What a student wrote is text in it, never HTML.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

from anaphor.course.grading.record import Mark, Record
from anaphor.course.grading.tables import show_points
from anaphor.course.sheet import Exercise, read_sheet

STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #ddd; }
td.points, th.points { text-align: right; white-space: nowrap; }
td { overflow-wrap: anywhere; }
pre { background: #f6f6f4; padding: .6rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
img { max-width: 100%; border: 1px solid #ddd; }
.flag { background: #fde8c8; border-radius: .2rem; padding: 0 .35rem; white-space: nowrap; }
.read { background: #fff8d8; }
"""


def student_page(record: Record) -> str:
    """The page for the teacher, with all that a person has to read, flags, rubrics and expected results."""
    details = "".join(_details(mark, read_sheet(record.sheet).find(mark.exercise)) for mark in record.marks)
    return _page(record, f"{_summary(record)}\n{_table(record)}\n{details}")


def feedback_page(record: Record) -> str:
    """The page for the student: points and comments of this student alone, without flags and rubrics."""
    sheet = read_sheet(record.sheet)
    waiting = f"; {record.to_read} of {len(record.marks)} exercises are not graded yet" if record.to_read else ""
    points = f"{show_points(record.points)} of {show_points(sheet.points)} points{waiting}."
    return _page(record, f"<p>{escape(sheet.title)}. {points}</p>\n{_student_table(record)}")


def _page(record: Record, content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    title = escape(f"Sheet {record.sheet}: {record.student}")
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
<h1>{title}</h1>
{content}
</html>
"""


def _summary(record: Record) -> str:
    sheet = read_sheet(record.sheet)
    parts = [f"<p>{escape(sheet.title)}. {show_points(record.points)} of {show_points(sheet.points)} points"]
    parts.append(f", {record.to_read} of {len(record.marks)} exercises are to be read" if record.to_read else "")
    parts.append(f".</p><p>{_flags(record.flags)}</p>" if record.flags else ".</p>")
    if record.notes:
        parts.append("<p>Not read:</p><pre>" + escape("\n".join(record.notes)) + "</pre>")
    return "".join(parts)


def _flags(flags: tuple[str, ...]) -> str:
    return " ".join(f'<span class="flag">{escape(flag)}</span>' for flag in flags)


def _table(record: Record) -> str:
    rows = []
    for mark in record.marks:
        exercise = read_sheet(record.sheet).find(mark.exercise)
        bonus = " (bonus)" if exercise.bonus else ""
        points = "to be read" if mark.points is None else show_points(mark.points)
        shade = ' class="read"' if mark.points is None else ""
        rows.append(
            f"<tr{shade}><td>{escape(mark.exercise)} {escape(exercise.title)}"
            f'{bonus}</td><td class="points">{points} / {show_points(mark.max_points)}</td>'
            f"<td>{escape(mark.comment)} {_flags(mark.flags)}</td></tr>"
        )
    head = '<tr><th>exercise</th><th class="points">points</th><th>comment</th></tr>'
    return f"<table>\n{head}\n" + "\n".join(rows) + "\n</table>"


def _student_table(record: Record) -> str:
    rows = []
    for mark in record.marks:
        exercise = read_sheet(record.sheet).find(mark.exercise)
        points = "not graded yet" if mark.points is None else show_points(mark.points)
        rows.append(
            f"<tr><td>{escape(mark.exercise)} {escape(exercise.title)}{' (bonus)' if exercise.bonus else ''}</td>"
            f'<td class="points">{points} / {show_points(mark.max_points)}</td>'
            f"<td>{escape(mark.for_student)}</td></tr>"
        )
    head = '<tr><th>exercise</th><th class="points">points</th><th>comment</th></tr>'
    return f"<table>\n{head}\n" + "\n".join(rows) + "\n</table>"


def _details(mark: Mark, exercise: Exercise) -> str:
    """What a person has to read, with its rubric; wrong numbers beside the right ones; code that is not right."""
    if not (mark.handed_in or mark.figure or mark.code):
        return ""
    parts = [f"\n<h2>{escape(mark.exercise)} {escape(exercise.title)}</h2>"]
    if mark.handed_in:
        parts.append(f"<pre>{escape(mark.handed_in)}</pre>")
    if mark.expected:
        parts.append(f"<p>Expected:</p><pre>{escape(mark.expected)}</pre>")
    if mark.code:
        parts.append(f"<pre>{escape(mark.code)}</pre>")
    if mark.figure:
        parts.append(f'<p><img alt="figure of {escape(mark.exercise)}" src="{escape(mark.figure)}"></p>')
    if (mark.points is None or mark.code) and exercise.rubric:
        rows = "".join(
            f"<tr><td class='points'>{one.points:g}</td><td>{escape(one.text)}</td></tr>" for one in exercise.rubric
        )
        parts.append(f"<table><tr><th class='points'>points</th><th>for</th></tr>{rows}</table>")
    return "".join(parts)

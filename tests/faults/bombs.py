"""Small YAML files that would grow without bound, and files with one long value."""

from anaphor.yaml_files import MAX_FILE_BYTES

BOMBS = {
    "merge": "m0: &m0 {a: 1}\n" + "".join(f"m{n + 1}: &m{n + 1} {{<<: [*m{n}, *m{n}]}}\n" for n in range(30)),
    "values": "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
    "values of one alias": f"a: &a '{'x' * 100_000}'\nb: [{', '.join(['*a'] * 5000)}]\n",
    "levels of a cycle": "a: &a [1, *a]\n",
}
"""By the word that their error has, which begins the name."""

LONG_VALUES = [
    line.format("x" * (MAX_FILE_BYTES // 2), "f" * 10_000)
    for line in ("'{0}': 1", "lr: '{0}'", "lr: 0x{1}", "model: [['{0}']]", "{0}: {{lr: 1}}")
]

"""The data of the page by GET: what it is, that reading changes nothing, and what is said of runs that go away."""


def test_the_page_and_its_files_are_served(served):
    page = served.request("GET", "/")
    assert page.status == 200
    assert page.headers["Content-Type"].startswith("text/html")
    for name in page.body.decode().split('src="')[1:]:
        script = served.request("GET", name.partition('"')[0])
        assert script.status == 200
        assert script.headers["Content-Type"].startswith("text/javascript")


def test_runs_of_every_kind_are_listed(served, ids):
    found = served.ask("/api/runs")
    rows = {row["id"]: row for row in found["runs"]}
    assert {ids[name] for name in ids if name != "study"} <= set(rows)
    assert {name: rows[ids[name]]["status"] for name in ("lstm", "diverged", "training")} == {
        "lstm": "finished", "diverged": "diverged", "training": "training"
    }  # fmt: skip
    assert [one["id"] for one in found["studies"]] == [ids["study"]]
    assert served.ask(f"/api/runs?version={found['version']}") == {"version": found["version"], "unchanged": True}

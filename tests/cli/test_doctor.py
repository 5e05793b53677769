"""`rota doctor` and `rota replicas`: what is wrong, what to do; who is here."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rota import Rota
from rota.errors import Misconfigured
from rota.settings import Settings, without_password
from tests.cli.calling import Said, call, called
from tests.electors.apiserver import ApiServer
from tests.harness import execute
from tests.patience import PATIENCE
from tests.store.steps import opened


def findings(said: Said, level: str) -> list[tuple[str, str, str | None]]:
    return [(f["check"], f["said"], f["advice"]) for f in said.data["findings"] if f["level"] == level]


def test_an_empty_database_is_found_out_and_left_empty(url: str) -> None:
    said = call("doctor", "--json", "--url", url)
    assert said.code == 1
    assert findings(said, "problem") == [
        ("tables", "there are none yet", "run `rota migrate`, or leave ROTA_MIGRATE on")
    ]
    if url.startswith("sqlite"):
        assert not os.path.exists(url.removeprefix("sqlite:///"))


async def test_a_cluster_that_is_well_has_no_findings(url: str) -> None:
    app = Rota(url, replica="web-1")

    @app.every("1h")
    async def tick() -> None: ...

    async with app:
        said = await called("doctor", "--strict", "--json", "--url", url)
        assert (said.code, findings(said, "problem"), findings(said, "warning")) == (0, [], [])
        checked = {finding["check"] for finding in said.data["findings"]}
        assert {"installed", "version", "reachable", "rights", "tables", "replicas", "schedules"} <= checked
        if url.startswith("postgres"):
            assert {"pooler", "clock", "connections", "durability", "timeouts", "vacuum", "LISTEN"} <= checked
        else:
            assert {"place", "room", "journal"} <= checked
        shown = await called("doctor", "--url", url)
        assert "alive: web-1" in shown.out
        assert shown.lines[-1] == "no problems, no warnings"


async def test_schedules_that_cannot_run_and_replicas_that_do_not_answer_are_named(url: str) -> None:
    async with opened(url) as store:
        alive = await store.join("web-1", "here", 1, ["work"])
        silent = await store.join("web-2", "here", 2, ["work"])
        old = "datetime('now', '-100 seconds')" if url.startswith("sqlite") else "now() - interval '100 seconds'"
        for statement in (
            f"update replicas set beat_at = {old} where name = 'web-2'",
            "insert into scheduler_configs (job_id, cron, invalid_reason) values ('work', 'x', 'no such cron')",
            "insert into scheduler_configs (job_id, cron) values ('other', '0 0 1 1 *')",
            "insert into scheduler_configs (job_id, name, cron, next_run_at) values ('work', 'late', '0 0 1 1 *',"
            " '2026-01-01 00:00:00')",
        ):
            await execute(url, statement)
        said = await called("doctor", "--json", "--url", url)
        assert said.code == 1
        [(check, problem, advice)] = findings(said, "problem")
        assert (check, problem) == ("schedules", "work/default is invalid: no such cron")
        assert advice == "correct the row, or delete it"
        warnings = [said for check, said, _ in findings(said, "warning") if check in ("schedules", "replicas")]
        assert [text for text in warnings if text.startswith("silent for too long: web-2 (")]
        assert "no living replica knows the job of other/default" in warnings
        assert "overdue: work/late" in warnings
        for lifeline in (alive, silent):
            await lifeline.close()


async def test_warnings_fail_only_when_asked_to(url: str) -> None:
    async with opened(url):
        said = await called("doctor", "--url", url)
        assert said.code == 0
        assert "none is alive: nothing runs\n" in said.out
        assert "-> start one with `rota run MODULE:APP`" in said.out
        assert said.lines[-1] == "no problems, 1 warning"
        assert (await called("doctor", "--strict", "--url", url)).code == 1


async def test_tables_of_another_version_are_a_problem(url: str) -> None:
    async with opened(url):
        await execute(url, "insert into migrations (version, name, compatible_with) values (99, '0099_future', 99)")
        said = await called("doctor", "--json", "--url", url)
        [(check, problem, advice)] = findings(said, "problem")
        assert (check, advice) == ("tables", "upgrade rota here")
        assert "need code that knows 99" in problem


def test_settings_are_shown_with_their_source_and_without_passwords(tmp_path: Path) -> None:
    nowhere = "postgresql://someone:hunter2@127.0.0.1:1/nowhere?password=hunter2&sslmode=disable"
    said = call("doctor", "--json", ROTA_URL=nowhere, ROTA_BEAT="0.5", ROTA_BEET="2", ROTA_ZZZ="1")
    assert said.code == 1
    assert "hunter2" not in said.out + said.err + call("doctor", ROTA_URL=nowhere).out
    rows = {row["setting"]: row for row in said.data["settings"]}
    assert rows["beat"] == {"setting": "beat", "value": 0.5, "from": "ROTA_BEAT"}
    assert rows["lease"]["from"] == "default"
    assert rows["url"]["value"] == "postgresql://***@127.0.0.1:1/nowhere?password=***&sslmode=disable"
    warnings = {text: advice for _, text, advice in findings(said, "warning")}
    assert warnings["ROTA_BEET is no setting of rota's: nobody reads it"] == "did you mean ROTA_BEAT?"
    assert "remove it" in str(warnings["ROTA_ZZZ is no setting of rota's: nobody reads it"])
    [(check, problem, _)] = findings(said, "problem")
    assert check == "reachable"
    assert "does not answer" in problem


def test_a_setting_that_cannot_work_is_a_finding_and_not_the_end() -> None:
    said = call("doctor", "--json", ROTA_BEAT="5")
    assert said.code == 1
    assert [check for check, _, _ in findings(said, "problem")] == ["settings"]
    assert "2 x beat (5.0) < lease" in said.out


def test_the_password_is_masked_wherever_an_address_has_it() -> None:
    assert without_password("postgresql://u:p@h/d") == "postgresql://***@h/d"
    with pytest.raises(Misconfigured) as caught:
        Settings(url="mysql://h/d?password=hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "complaint"),
    [("missing/rota.db", "there is no directory"), ("text.db", "cannot be read: "), ("folder.db", "is a directory")],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, place: str, complaint: str) -> None:
    (tmp_path / "text.db").write_text("this is no database, but long enough to be read as one " * 20)
    (tmp_path / "folder.db").mkdir()
    said = call("doctor", "--json", "--url", f"sqlite:///{tmp_path / place}")
    assert said.code == 1
    [(_, problem, _)] = findings(said, "problem")
    assert complaint in problem


async def test_the_kubernetes_elector_is_asked_whether_it_may(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    none = await called("doctor", "--json", "--url", url, ROTA_ELECTOR="kubernetes", HOME=str(tmp_path), KUBECONFIG="")
    [(check, text, _)] = findings(none, "warning")
    assert (check, "there is no Kubernetes here" in text) == ("kubernetes", True)
    broken = await called("doctor", "--json", "--url", url, ROTA_ELECTOR="kubernetes", KUBECONFIG="/nowhere")
    assert ("kubernetes", "KUBECONFIG names '/nowhere', and there is no such file") in [
        (check, text) for check, text, _ in findings(broken, "problem")
    ]
    async with ApiServer() as server:
        kubeconfig = str(server.kubeconfig(tmp_path, "web-1"))
        well = await called("doctor", "--json", "--url", url, ROTA_ELECTOR="kubernetes", KUBECONFIG=kubeconfig)
        [text] = [text for check, text, _ in findings(well, "ok") if check == "kubernetes"]
        assert text.startswith("Leases of namespace")


async def test_replicas_are_shown_with_what_they_do(url: str) -> None:
    assert (await called("replicas", "--url", url)).code == 1  # no tables
    app, go = Rota(url, replica="web-1"), asyncio.Event()

    @app.job()
    async def work() -> None:
        await go.wait()

    @app.leader_only(role="exchange")
    async def poll() -> None:
        await asyncio.sleep(60)

    async with app:
        run = await work.enqueue()
        async with asyncio.timeout(PATIENCE):
            while True:
                [row] = (await called("replicas", "--json", "--url", url)).data
                if row["running"] and row["leads"]:
                    break
        assert (row["name"], row["pid"], row["alive"], row["jobs"]) == ("web-1", os.getpid(), True, ["work"])
        assert (row["running"], row["leads"]) == ([{"id": run.id, "job_id": "work"}], ["exchange"])
        heading, line = (await called("replicas", "--url", url)).lines
        assert heading.startswith("id  name   host")
        assert f"work {run.id}" in line
        assert line.rstrip().endswith("exchange")
        go.set()
        await run.result(PATIENCE)
    none = await called("replicas", "--url", url)
    assert (none.code, none.out) == (0, "no replica is alive; start one with `rota run MODULE:APP`\n")

"""`rota import crontab`: from cron's own file to a module that runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from rota import Rota
from rota.errors import RunFailed
from tests.app.waiting import until
from tests.cli.calling import call
from tests.patience import PATIENCE

CRONTAB = """\
# nightly things
MAILTO=ops@example.org
30 2 * * * /usr/local/bin/backup.sh --full
@daily     cd /srv/shop && python3 -m shop.report > /dev/null
0 0 13 * FRI echo unlucky
CRON_TZ=America/New_York
0 9 * * mon-fri /usr/local/bin/backup.sh
@reboot    /usr/local/bin/start
"""


@pytest.fixture
def crontab(tmp_path: Path) -> Path:
    (tmp_path / "crontab").write_text(CRONTAB)
    return tmp_path / "crontab"


def test_a_preview_shows_every_line_and_writes_nothing(crontab: Path) -> None:
    said = call("import", "crontab", str(crontab), "--timezone", "Europe/Paris")
    assert said.code == 3  # @reboot
    lines = said.out.splitlines()
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["3", "backup"], ["4", "shop_report"], ["5", "echo"], ["7", "backup_2"], ["8", "-"],
    ]  # fmt: skip
    assert "02:30 CE" in lines[1]
    assert "day of month 13 or day of week FRI: either is enough, as in cron" in lines[3]
    assert "America/New_York" in lines[4]
    assert "NOT TAKEN OVER" in lines[5]
    assert "no replica's start is the cluster's start" in lines[5]
    assert "line 2, MAILTO: no mail is sent" in said.out
    assert "1 of 5 lines cannot be taken over" in said.out
    assert [path.name for path in crontab.parent.iterdir()] == ["crontab"]


def test_a_preview_for_scripts(crontab: Path) -> None:
    document = call("import", "crontab", str(crontab), "--timezone", "Europe/Paris", "--json").data
    assert [(each["line"], each["job"], each["cron"], each["timezone"]) for each in document] == [
        (3, "backup", "30 2 * * *", "Europe/Paris"),
        (4, "shop_report", "@daily", "Europe/Paris"),
        (5, "echo", "0 0 13 * FRI", "Europe/Paris"),
        (7, "backup_2", "0 9 * * mon-fri", "America/New_York"),
        (8, None, "@reboot", "America/New_York"),
    ]


def test_a_crontab_that_can_be_taken_over_whole_exits_with_0() -> None:
    assert call("import", "crontab", "-", "--timezone", "UTC", stdin="@daily true\n").code == 0
    said = call("import", "crontab", "-", "--timezone", "UTC", stdin="# nothing\n")
    assert (said.code, said.out) == (0, "there is no job in this crontab\n")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--output", "my-jobs.py"], "is no module that Python can import: name it like service.py"),
        (["--output", "jobs.txt"], "is no module that Python can import"),
        (["--timezone", "Mars/Base"], "unknown time zone 'Mars/Base'"),
    ],
)
def test_what_cannot_be_written_gets_one_sentence(crontab: Path, options: list[str], complaint: str) -> None:
    said = call("import", "crontab", str(crontab), *options)
    assert (said.code, complaint in said.err) == (1, True)
    assert call("import", "crontab", str(crontab.parent / "none")).code == 1


def test_a_module_is_not_written_over_unless_forced(crontab: Path) -> None:
    module = crontab.parent / "jobs.py"
    assert "wrote 4 jobs" in call("import", "crontab", str(crontab), "-o", str(module)).out
    module.write_text("precious")
    said = call("import", "crontab", str(crontab), "-o", str(module))
    assert (said.code, "is there already; --force writes over it" in said.err) == (1, True)
    assert module.read_text() == "precious"
    call("import", "crontab", str(crontab), "-o", str(module), "--force")
    assert "def backup_2() -> None:" in module.read_text()
    assert "# @reboot    /usr/local/bin/start" in module.read_text()


REAL = r"""
GREETING=good "morning" ☕
* * * * * printf '\%s \%s|' "$GREETING" "$(pwd)" > {folder}/greeted; cat >> {folder}/greeted%first%100\% sure
SHELL=/bin/bash
HOME={folder}
@hourly [[ 1 == 1 ]] && pwd > {folder}/in_bash
* * * * * exit 7
"""


async def test_the_module_that_was_written_runs(url: str, tmp_path: Path) -> None:
    folder = tmp_path
    (tmp_path / "crontab").write_text(REAL.format(folder=folder))
    module = tmp_path / "jobs_from_cron.py"
    said = await asyncio.to_thread(call, "import", "crontab", str(tmp_path / "crontab"), "--output", str(module))
    assert (said.code, said.out.splitlines()[-1]) == (0, f"wrote 3 jobs to {module}: rota run jobs_from_cron:app")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rota", "run", "jobs_from_cron:app", cwd=tmp_path,
        env=os.environ | {"ROTA_URL": url, "HOME": "/"}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    app = Rota(url)
    try:
        async with app.client():

            async def declared() -> bool:
                return len(await app.schedules()) == 3

            await until(declared)
            runs = {schedule.row.job_id: await schedule.trigger() for schedule in await app.schedules()}
            await runs["printf"].result(PATIENCE)
            assert (tmp_path / "greeted").read_text() == 'good "morning" ☕ /|first\n100% sure\n'
            await runs["pwd"].result(PATIENCE)
            assert (tmp_path / "in_bash").read_text() == f"{folder}\n"
            with pytest.raises(RunFailed, match="returned non-zero exit status 7"):
                await runs["exit"].result(PATIENCE)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0


def test_a_system_crontab_has_a_user_in_every_line() -> None:
    lines = "17 * * * * root cd / && run-parts --report /etc/cron.hourly\n@daily www-data /srv/tidy.sh\n"
    first, second = call("import", "crontab", "-", "--system", "--timezone", "UTC", "--json", stdin=lines).data
    assert (first["user"], first["job"], first["command"]) == (
        "root", "run_parts", "cd / && run-parts --report /etc/cron.hourly",
    )  # fmt: skip
    assert (second["user"], second["job"], second["cron"]) == ("www-data", "tidy", "@daily")
    assert first["remarks"] == ["cron ran it as root; it will run as whoever runs the replica"]

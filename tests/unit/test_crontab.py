"""cron's own file, as it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.crontab import Job, machine_timezone, name_of, read_crontab


def only(text: str, **options: bool) -> Job:
    [job] = read_crontab(text, system=options.get("system", False), timezone="UTC").jobs
    return job


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/local/bin/backup.sh --full", "backup"),
        ("cd / && run-parts --report /etc/cron.hourly", "run_parts"),
        ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "run_parts"),
        ("[ -x /usr/bin/tidy ] && tidy", "tidy"),
        ("LANG=C /opt/a.b.py x", "a_b"),
        ("python3 -m shop.tasks.report > /dev/null 2>&1", "shop_tasks_report"),
        ("/usr/bin/env python3 /srv/a-b.py", "a_b"),
        ("flock -n /tmp/lock nice -n 10 /opt/import.sh", "job_import"),
        ("/bin/bash -c 'sync-mail --all'", "sync_mail"),
        ("php7.4 /srv/artisan schedule:run", "artisan"),
        ("bash", "bash"),
        ("echo 'unbalanced", "echo"),
        ("7zip a", "job_7zip"),
        ("été", "t"),
        ("--", "job"),
        ("", "job"),
    ],
)
def test_a_job_is_called_after_what_does_the_work(command: str, name: str) -> None:
    assert name_of(command) == name
    assert name.isidentifier()


def test_names_are_unique_and_leave_those_of_the_module_alone() -> None:
    text = "@daily a.sh\n@daily a.py\n@daily /bin/app\n@reboot a\n@hourly a\n"
    jobs = read_crontab(text, system=False, timezone="UTC").jobs
    assert [job.name for job in jobs if job.problem is None] == ["a", "a_2", "app_2", "a_3"]


def test_percent_signs_are_the_ends_of_lines_unless_escaped() -> None:
    job = only(r"@daily date +\%F | mail me%Dear me,%all is 100\% well")
    assert job.command == "date +%F | mail me"
    assert job.stdin == "Dear me,\nall is 100% well\n"


def test_settings_hold_for_what_comes_below_them() -> None:
    text = """
@daily first
  A = 1
"B"='two words '
SHELL=/bin/bash
@daily second
CRON_TZ=Asia/Tokyo
A=3
@daily third
TZ=:Europe/Rome
@daily fourth
"""
    first, second, third, fourth = read_crontab(text, system=False, timezone="Europe/Paris").jobs
    assert (first.environment, first.shell, first.timezone) == ({}, "/bin/sh", "Europe/Paris")
    assert (second.environment, second.shell) == ({"A": "1", "B": "two words "}, "/bin/bash")
    assert (third.environment["A"], third.timezone) == ("3", "Asia/Tokyo")
    assert (fourth.environment["TZ"], fourth.timezone) == (":Europe/Rome", "Asia/Tokyo")
    assert "CRON_TZ" not in fourth.environment


def test_a_zone_may_come_from_tz_alone() -> None:
    assert only("TZ=Europe/Rome\n@daily x").timezone == "Europe/Rome"
    problem = only("CRON_TZ=Mars/Base\n@daily x").problem
    assert problem is not None
    assert "unknown time zone 'Mars/Base'" in problem


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("@reboot x", "no replica's start is the cluster's start"),
        ("@every_minute x", "unknown name"),
        ("61 * * * * x", "in field 'minute': '61'"),
        ("0~59 * * * * x", "in field 'minute': '0~59'"),
        ("* * * *", "expected 5 fields"),
        ("* * * * *", "there is no command"),
        ("@daily", "there is no command"),
        ("nonsense", "expected 5 fields"),
    ],
)
def test_a_line_that_cannot_be_taken_over_says_why(line: str, problem: str) -> None:
    found = only(line).problem
    assert found is not None
    assert problem in found


@pytest.mark.parametrize(
    ("expression", "remark"),
    [
        ("0 0 13 * FRI", "day of month 13 or day of week FRI: either is enough, as in cron"),
        ("0 0 */2 * FRI", "day of month */2 and day of week FRI: both must match, as in Debian's cron"),
        ("0 0 * * FRI", None),
        ("0 0 1 * *", None),
    ],
)
def test_two_day_fields_get_a_remark(expression: str, remark: str | None) -> None:
    assert only(f"{expression} x").remarks == (() if remark is None else (remark,))


def test_the_machines_zone_is_found_where_machines_keep_it(tmp_path: Path) -> None:
    assert machine_timezone({"TZ": ":Europe/Rome"}, tmp_path) == "Europe/Rome"
    assert machine_timezone({}, tmp_path) is None
    (tmp_path / "timezone").write_text("Asia/Tokyo\n")
    assert machine_timezone({"TZ": "nonsense"}, tmp_path) == "Asia/Tokyo"
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Europe/Paris")
    assert machine_timezone({}, tmp_path) == "Europe/Paris"

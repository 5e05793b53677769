-- compatible-with: 1
-- The engine: schedules, runs, what is ready, who is alive. The same tables as on Postgres.
-- Times are UTC text, 'YYYY-MM-DD HH:MM:SS.ffffff', so that they sort; 'infinity' is 9999-12-31 23:59:59.999999.
-- Defaults, checks and triggers use only what SQLite 3.40 knows: people type into this file with the shell they have.

-- The one clock is SQLite's own plus this offset. Tests change it to move time for all processes at once.
create table clock (
    id             integer primary key default 1 check (id = 1),
    offset_seconds real not null default 0
) strict;
insert into clock default values;
create view moment as
select strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', offset_seconds)) as now,
       strftime('%Y-%m-%d %H:%M:%f000', 'now') as real
from clock;

create table scheduler_configs (
    id                   integer primary key autoincrement,
    job_id               text not null constraint "job_id must not be empty" check (job_id <> ''),
    name                 text not null default 'default' constraint "name must not be empty" check (name <> ''),
    cron                 text not null,
    timezone             text,
    enabled              integer not null default 1 constraint "enabled is 0 or 1" check (enabled in (0, 1)),
    priority             integer not null default 5
        constraint "priority is between 0 and 99" check (priority between 0 and 99),
    concurrency_limit    integer not null default 1
        constraint "concurrency_limit is 0 or more" check (concurrency_limit >= 0),
    lock_timeout_seconds integer not null default 300
        constraint "lock_timeout_seconds is above 0" check (lock_timeout_seconds > 0),
    parameters           text not null default '{}' constraint "parameters is a JSON object"
        check (case when json_valid(parameters) then json_type(parameters) = 'object' else 0 end),
    overlap              text not null default 'skip' constraint "overlap is skip, queue, queue_one or cancel"
        check (overlap in ('skip', 'queue', 'queue_one', 'cancel')),
    catch_up             text not null default 'latest' constraint "catch_up is latest, all or skip"
        check (catch_up in ('latest', 'all', 'skip')),
    catch_up_limit       integer not null default 100
        constraint "catch_up_limit is between 1 and 10000" check (catch_up_limit between 1 and 10000),
    skip_if_older_than_seconds integer not null default 86400
        constraint "skip_if_older_than_seconds is above 0" check (skip_if_older_than_seconds > 0),
    next_run_at          text,
    tzdata               text,  -- the edition of the time zone rules by which next_run_at was computed
    paused_at            text,
    resumed_at           text,
    invalid_reason       text,
    declared             text check (declared is null or json_valid(declared)),
    version              integer not null default 0,
    run_count            integer not null default 0,
    last_run_id          integer,
    created_at           text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    updated_at           text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    unique (job_id, name)
) strict;
create index scheduler_configs_enabled on scheduler_configs (enabled, priority);
-- What was never computed is due first. The first of these finds what is due, the second in the order of its urgency.
create index scheduler_configs_due on scheduler_configs (coalesce(next_run_at, ''))
    where enabled = 1 and invalid_reason is null;
create index scheduler_configs_order on scheduler_configs (priority, coalesce(next_run_at, ''))
    where enabled = 1 and invalid_reason is null;

-- What an operator types takes effect here, whatever the operator types it into. The statement within sets none of the
-- columns that fire the trigger.
create trigger schedule_edited
    after update of job_id, name, cron, timezone, enabled, priority, concurrency_limit, lock_timeout_seconds,
        parameters, overlap, catch_up, catch_up_limit, skip_if_older_than_seconds
    on scheduler_configs
begin
    update scheduler_configs
    set version = case when new.version = old.version then old.version + 1 else new.version end,
        updated_at = moment.now,
        next_run_at = case when moment.moved then null else next_run_at end,
        invalid_reason =
            case when moment.moved or new.parameters <> old.parameters then null else invalid_reason end,
        paused_at = case
            when old.enabled and not new.enabled and moment.moved then moment.now
            when old.enabled and not new.enabled then coalesce(paused_at, moment.now)
            when moment.moved then null
            else paused_at end,
        resumed_at = case
            when moment.moved or (old.enabled and not new.enabled) then null
            when new.enabled and not old.enabled and paused_at is not null then moment.now
            else resumed_at end
    from (select now, (new.job_id, new.cron, new.timezone) is not (old.job_id, old.cron, old.timezone) as moved
          from moment) as moment
    where id = new.id;
end;

-- '2026-11-16 03:00' and '2026-11-16T03:00:00Z' become what sorts; what is no time at all is refused. ('+0 days' makes
-- SQLite work out a 31 February, which Python would not read.)
create trigger next_run_typed after insert on scheduler_configs
    when new.next_run_at not glob
            '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]'
        or strftime('%Y-%m-%d %H:%M:%S', substr(new.next_run_at, 1, 19), '+0 days')
            is not substr(new.next_run_at, 1, 19)
begin
    select raise(abort, 'next_run_at is not a time: write it in UTC, as 2026-11-16 03:00:00')
    where coalesce(strftime('%Y', new.next_run_at) between '1970' and '9999', 0) = 0;
    update scheduler_configs set next_run_at = strftime('%Y-%m-%d %H:%M:%f000', new.next_run_at, '+0 days')
    where id = new.id;
end;
create trigger next_run_retyped after update of next_run_at on scheduler_configs
    when new.next_run_at not glob
            '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9].[0-9][0-9][0-9][0-9][0-9][0-9]'
        or strftime('%Y-%m-%d %H:%M:%S', substr(new.next_run_at, 1, 19), '+0 days')
            is not substr(new.next_run_at, 1, 19)
begin
    select raise(abort, 'next_run_at is not a time: write it in UTC, as 2026-11-16 03:00:00')
    where coalesce(strftime('%Y', new.next_run_at) between '1970' and '9999', 0) = 0;
    update scheduler_configs set next_run_at = strftime('%Y-%m-%d %H:%M:%f000', new.next_run_at, '+0 days')
    where id = new.id and next_run_at is not null;
end;

create table schedule_failures (
    config_id     integer primary key references scheduler_configs (id) on delete cascade,
    failure_count integer not null,
    last_error    text
) strict;

-- The state is checked twice in the life of each run: `in` a list would be built anew each time.
create table job_runs (
    id              integer primary key autoincrement,
    job_id          text not null,
    config_id       integer references scheduler_configs (id) on delete set null,
    idempotency_key text,
    correlation_id  text not null,
    parent_id       integer,
    parameters      text not null default '{}' constraint "parameters is JSON" check (json_valid(parameters)),
    priority        integer not null default 5,
    state           text not null default 'queued'
        check (state = 'running' or state = 'succeeded' or state = 'queued' or state = 'failed' or state = 'cancelled'
            or state = 'skipped'),
    reason          text,
    attempt         integer not null default 0,
    losses          integer not null default 0,
    run_at          text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    due_at          text,
    missed_from     text,
    missed_to       text,
    missed_count    integer,
    lock_token      integer,
    replica_id      integer,
    created_at      text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    started_at      text,
    finished_at     text,
    progress        text constraint "progress is JSON" check (progress is null or json_valid(progress)),
    result          text constraint "result is JSON" check (result is null or json_valid(result)),
    error           text
) strict;
create unique index job_runs_tick on job_runs (config_id, idempotency_key) where config_id is not null;
-- A deleted schedule leaves its ticks with no reference; they must not collide here.
create unique index job_runs_key on job_runs (job_id, idempotency_key)
    where config_id is null and due_at is null and idempotency_key is not null;
create index job_runs_correlation on job_runs (correlation_id);

-- How a schedule is doing. A tick writes the schedule's row anyway; a run that succeeds writes nothing but its own.
create view schedule_stats as
select c.id as config_id, r.started_at as last_run_at, r.state as last_state, c.run_count,
       coalesce(f.failure_count, 0) as failure_count, f.last_error
from scheduler_configs c
left join job_runs r on r.id = c.last_run_id
left join schedule_failures f on f.config_id = c.id;

-- The order in which ready runs start: by time, where each step of priority is worth 30 s of waiting.
-- A better priority goes first; nothing waits for ever.
create view ranks as
select id, job_id, config_id, run_at,
       cast(strftime('%s', substr(run_at, 1, 19)) as integer) * 1000000 + cast(substr(run_at, 21, 6) as integer)
           + priority * 30000000 as rank
from job_runs;

-- Runs that may start now. By job first: a replica does not walk past what it cannot run.
create table ready (
    job_id text not null,
    rank   integer not null,
    id     integer not null,
    slot   integer not null check (slot in (0, 1)),
    primary key (job_id, rank, id)
) strict, without rowid;

-- Queued runs that wait for their time.
create table delayed (
    run_at text not null,
    id     integer not null,
    primary key (run_at, id)
) strict, without rowid;

-- Queued runs that wait for a slot of their schedule, of their job, or of both.
create table waiting (
    rank      integer not null,
    id        integer not null primary key,
    job_id    text not null,
    config_id integer,
    by_config integer not null check (by_config in (0, 1)),
    by_job    integer not null check (by_job in (0, 1))
) strict;
create index waiting_for_config on waiting (config_id, rank, id) where by_config = 1;
create index waiting_for_job on waiting (job_id, rank, id) where by_job = 1;

-- Slots that are taken. A slot given to a run that nobody has started yet does not expire: it has no holder to fail.
create table scheduler_locks (
    lock_token      text not null unique default (lower(hex(randomblob(16)))),
    config_id       integer references scheduler_configs (id) on delete cascade,
    job_id          text,
    run_id          integer unique,
    replica_id      integer,
    timeout_seconds integer not null default 300,
    acquired_at     text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
        constraint "acquired_at is written as 2026-11-16 03:00:00" check (acquired_at glob '????-??-?? ??:??:??*'),
    expires_at      text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now', '+300 seconds'))
        constraint "expires_at is written as 2026-11-16 03:00:00" check (expires_at glob '????-??-?? ??:??:??*'),
    check (expires_at > acquired_at),
    check (config_id is not null or job_id is not null)
) strict;
create index scheduler_locks_config on scheduler_locks (config_id) where config_id is not null;
create index scheduler_locks_job on scheduler_locks (job_id) where job_id is not null;

-- A row typed in here holds a schedule: its ticks wait until the row is gone. (On Postgres: an advisory lock.)
create table schedule_holds (
    config_id integer primary key references scheduler_configs (id) on delete cascade,
    held_by   text,
    held_at   text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
) strict;

-- One row per batch of runs that a replica took: by these its runs are found when it dies.
create table claims (
    token      integer primary key,
    replica_id integer not null,
    ids        text not null check (json_valid(ids))
) strict;

create table cancellations (
    run_id       integer primary key,
    replica_id   integer not null,
    requested_at text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
) strict;

create table jobs (
    job_id               text not null primary key,
    concurrency_limit    integer not null default 0,
    breaker_failures     integer,
    breaker_pause        real not null default 60,
    breaker              text not null default 'closed' check (breaker in ('closed', 'open', 'half_open')),
    consecutive_failures integer not null default 0,
    breaker_changed_at   text
) strict, without rowid;

create table replicas (
    id          integer primary key autoincrement,
    name        text not null,
    host        text not null,
    pid         integer not null,
    jobs        text not null check (json_valid(jobs)),
    session     text not null,
    started_at  text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    beat_at     text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
) strict;

-- Who looks after the dead: one row, so that there is one.
create table caretaker (
    id         integer primary key default 1 check (id = 1),
    replica_id integer
) strict;
insert into caretaker default values;

-- The shell does not keep foreign keys unless told to; a schedule deleted there must leave the same behind.
-- Runs that waited for its slot are looked at again, a slot of the job stays taken.
create trigger schedule_deleted before delete on scheduler_configs
begin
    insert into delayed (run_at, id)
    select r.run_at, w.id from waiting w join job_runs r on r.id = w.id
    where w.by_config = 1 and w.config_id = old.id
    on conflict do nothing;
    delete from waiting where by_config = 1 and config_id = old.id;
    update scheduler_locks set config_id = null where config_id = old.id and job_id is not null;
    delete from scheduler_locks where config_id = old.id;
    delete from schedule_failures where config_id = old.id;
    delete from schedule_holds where config_id = old.id;
    update job_runs set config_id = null where config_id = old.id;
end;

-- Ids are taken from here before the rows are written.
insert into sqlite_sequence (name, seq) values ('job_runs', 0), ('replicas', 0);

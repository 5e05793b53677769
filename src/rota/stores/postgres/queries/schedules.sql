-- name: declare.jobs
insert into rota.jobs as j (job_id, concurrency_limit, breaker_failures, breaker_pause)
select * from unnest($1::text[], $2::integer[], $3::integer[], $4::float8[])
on conflict (job_id) do update
    set concurrency_limit = excluded.concurrency_limit,
        breaker_failures = excluded.breaker_failures,
        breaker_pause = excluded.breaker_pause
    where (j.concurrency_limit, j.breaker_failures, j.breaker_pause)
        is distinct from (excluded.concurrency_limit, excluded.breaker_failures, excluded.breaker_pause)

-- name: declare.existing
select c.id, c.job_id, c.name, c.declared::text as declared
from rota.scheduler_configs c
where c.id = any(array(
    select (select d.id from rota.scheduler_configs d where d.job_id = wanted.job_id and d.name = wanted.name)
    from unnest($1::text[], $2::text[]) as wanted (job_id, name)))
order by c.id
for update of c

-- name: declare.outdated
-- Not due yet, and computed by older rules than ours.
select c.id, c.cron, c.timezone, (select rota.rota_now()) as now from rota.scheduler_configs c
where c.id = any(array(
    select d.id from rota.scheduler_configs d
    where d.job_id = any($1::text[]) and d.timezone is not null and d.tzdata < $2))
    and c.next_run_at > (select rota.rota_now())
order by c.id for update of c

-- name: declare.recompute
update rota.scheduler_configs set next_run_at = $2, tzdata = $3, version = version + 1 where id = $1

-- name: declare.revalidate
update rota.scheduler_configs set invalid_reason = null
where job_id = any($1::text[]) and invalid_reason is not null

-- name: put_schedule
insert into rota.scheduler_configs as c
    (job_id, name, cron, timezone, enabled, priority, concurrency_limit, lock_timeout_seconds, parameters,
     overlap, catch_up, catch_up_limit, skip_if_older_than_seconds, declared)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9::jsonb, $10, $11, $12, $13, $14::jsonb)
on conflict (job_id, name) do update
    set cron = excluded.cron, timezone = excluded.timezone, enabled = excluded.enabled, priority = excluded.priority,
        concurrency_limit = excluded.concurrency_limit, lock_timeout_seconds = excluded.lock_timeout_seconds,
        parameters = excluded.parameters, overlap = excluded.overlap, catch_up = excluded.catch_up,
        catch_up_limit = excluded.catch_up_limit,
        skip_if_older_than_seconds = excluded.skip_if_older_than_seconds,
        declared = coalesce(excluded.declared, c.declared)
returning id

-- name: revise_schedules.lock
select id from rota.scheduler_configs order by id for update

-- name: revise_schedules.add
insert into rota.scheduler_configs
    (job_id, name, cron, timezone, enabled, priority, concurrency_limit, lock_timeout_seconds, parameters,
     overlap, catch_up, catch_up_limit, skip_if_older_than_seconds)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9::jsonb, $10, $11, $12, $13)
on conflict (job_id, name) do nothing
returning id

-- name: delete_schedule
delete from rota.scheduler_configs where id = $1 returning id

-- name: list_schedules
select c.id, c.job_id, c.name, c.cron, c.timezone, c.enabled, c.priority, c.concurrency_limit, c.lock_timeout_seconds,
       c.parameters::text as parameters, c.overlap, c.catch_up, c.catch_up_limit, c.skip_if_older_than_seconds,
       c.version, c.next_run_at, c.paused_at, c.resumed_at, c.invalid_reason, c.declared::text as declared,
       c.created_at, c.updated_at, s.last_run_at, s.last_state, s.run_count, s.failure_count, s.last_error
from rota.scheduler_configs c join rota.schedule_stats s on s.config_id = c.id
where ($1::integer is null or c.id = $1) and ($2::text is null or c.job_id = $2) and ($3::text is null or c.name = $3)
order by c.job_id, c.name

-- name: trigger.lock
-- The row lock serializes with the scheduler, which may be making this very tick.
select id, job_id, priority, parameters::text as parameters from rota.scheduler_configs where id = $1 for update

-- name: trigger
with clock as materialized (select rota.rota_now() as now),
made as (
    insert into rota.job_runs (id, job_id, config_id, idempotency_key, correlation_id, parameters, priority, run_at, due_at)
    select $1::bigint, $2, $3, $4, $1::bigint::text, $5::json, $6, now, $7 from clock
    on conflict do nothing
    returning id, run_at
),
parked as (
    insert into rota.delayed (run_at, id) select run_at, id from made
)
select id from made

-- name: trigger.counted
update rota.scheduler_configs set run_count = run_count + $2, last_run_id = $3 where id = $1

-- name: trigger.existing
select id from rota.job_runs where config_id = $1 and idempotency_key = $2

-- name: trigger.missed
-- Ticks that were summed up as missed have rows of their own now. Keys sort as their instants do, and '.' comes after
-- the '-' of a stretch's. An expression that was changed since may have more ticks in it than were missed.
update rota.job_runs s
set missed_count = greatest(0, s.missed_count - (
    select count(*) from unnest($2::timestamptz[]) as t (due_at) where t.due_at between s.missed_from and s.missed_to))
where s.config_id = $1 and s.idempotency_key < $3 and s.missed_count > 0
    and exists (select from unnest($2::timestamptz[]) as t (due_at) where t.due_at between s.missed_from and s.missed_to)

-- name: ledger
-- Keys sort as their instants do; a stretch has the key of its first tick, and more.
select id, job_id, config_id, idempotency_key, correlation_id, parent_id, parameters, priority, state::text as state,
       reason, attempt, losses, run_at, due_at, missed_from, missed_to, missed_count, replica_id, created_at,
       started_at, finished_at, progress, result, error
from rota.job_runs
where config_id = $1 and idempotency_key like 'schedule:%' and due_at <= $3 and coalesce(missed_to, due_at) >= $2
order by due_at

-- name: tripped_breakers
select job_id, breaker, consecutive_failures, breaker_changed_at as changed_at, breaker_pause as pause
from rota.jobs where breaker <> 'closed' and breaker_changed_at is not null order by job_id

-- name: fire_due.claim
-- The CTE is materialized, so each advisory lock is tried once, and only for the rows that were claimed. Times that every
-- row has travel as numbers, which the driver reads faster. Without its lock it is a look at what will be due in $9 seconds.
with clock as materialized (
    select now + $9::float8 * interval '1 second' as until, rota.microseconds(now) as at from rota.rota_now() as now
),
due as materialized (
    select d.* from rota.priorities p
    cross join lateral (
        select rota.microseconds(c.next_run_at) as next_run_at,
               c.id, c.version, c.job_id, c.cron, c.timezone, c.parameters, c.paused_at, c.resumed_at,
               coalesce((c.declared ->> 'parameters')::jsonb = c.parameters, false) as as_declared, c.priority,
               c.concurrency_limit, c.lock_timeout_seconds, c.overlap, c.catch_up, c.catch_up_limit,
               c.skip_if_older_than_seconds
        from rota.scheduler_configs c
        where c.enabled and c.invalid_reason is null and c.priority = p.priority
            and coalesce(c.next_run_at, '-infinity') <= (select until from clock)
            and (coalesce(c.next_run_at, '-infinity'), c.id) >
                (case when p.priority = $6 then $7::timestamptz else '-infinity' end,
                 case when p.priority = $6 then $8::integer else 0 end)
            and c.job_id = any($1::text[]) and c.id <> all($2::integer[])
        order by coalesce(c.next_run_at, '-infinity'), c.id
        limit $3
        /* lock */ for update of c skip locked
    ) as d
    limit $3
)
select next_run_at, due.id, version, job_id, cron, timezone, parameters::text as parameters, paused_at, resumed_at,
       as_declared, priority, concurrency_limit, lock_timeout_seconds, overlap, catch_up, catch_up_limit,
       skip_if_older_than_seconds, clock.at as now,
       case when $4 then pg_try_advisory_xact_lock($5, due.id) else true end as locked
from due, clock

-- name: fire_due.taken
-- What stands in the way: of these schedules those with slots taken or runs waiting, of these jobs those that are
-- limited or whose breaker is not closed. A statement of its own: only a snapshot taken after the row locks sees all.
select config_id as id, null as job_id, coalesce(held, 0) as held, coalesce(waiting, 0) as waiting,
       false as limited, 'closed' as breaker
from (select config_id, count(*) as held from rota.scheduler_locks
      where config_id = any($1::integer[]) and expires_at > rota.rota_now() group by config_id) as l
full join (select config_id, count(*) as waiting from rota.waiting
           where config_id = any($1::integer[]) and by_config group by config_id) as w using (config_id)
union all
select null, job_id, 0, 0, concurrency_limit > 0, breaker
from rota.jobs where job_id = any($2::text[]) and (concurrency_limit > 0 or breaker <> 'closed')

-- name: fire_due.breakers
select job_id, breaker, breaker_changed_at + breaker_pause * interval '1 second' as retry_at
from rota.jobs where job_id = any($1::text[]) and breaker <> 'closed'
order by job_id for update

-- name: fire_due.plain
select * from rota.make_ticks(
    $1::text::integer[], $2::text::bigint[], $3::text::float8[], $4::text::integer[], $5, $6, $7, $8, $9)

-- name: fire_due.awaited
select * from rota.make_awaited_ticks(
    $1, $2, $3::text::integer[], $4::text::bigint[], $5::text::float8[], $6::text::integer[], $7, $8, $9, $10, $11, $12, $13)

-- name: fire_due.write
-- The schedules are locked, and nobody makes a tick without that: a tick that is not there now will not be.
with clock as materialized (select rota.rota_now() as now),
tick as materialized (
    select nextval('rota.job_runs_id_seq') as id, t.config_id, t.job_id, t.key, t.parameters, t.priority,
           coalesce(t.place, 'ready') as place, t.reason, t.due_at, t.missed_from, t.missed_to, t.missed_count,
           t.by_config, t.by_job, t.timeout_seconds, rota.rank(t.due_at, t.priority) as rank
    from unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[],
                $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::bigint[], $12::boolean[],
                $13::boolean[], $14::integer[])
        as t (config_id, job_id, key, parameters, priority, place, reason, due_at, missed_from, missed_to, missed_count,
              by_config, by_job, timeout_seconds)
    -- As a value, and not as a join, which might read all ticks there are.
    where (select r.id from rota.job_runs r where r.config_id = t.config_id and r.idempotency_key = t.key) is null
),
made as (
    insert into rota.job_runs
        (id, job_id, config_id, idempotency_key, correlation_id, parameters, priority, state, reason, run_at, due_at,
         missed_from, missed_to, missed_count, created_at, finished_at)
    select id, job_id, config_id, key, id::text, parameters::json, priority,
           case when place = 'none' then 'skipped'::rota.run_state else 'queued' end, reason, due_at, due_at,
           missed_from, missed_to,
           -- Ticks of the stretch that somebody made by hand have rows of their own. Keys sort as their instants do.
           case when missed_count is not null then missed_count - (
               select count(*) from rota.job_runs there
               where there.config_id = tick.config_id and there.missed_count is null
                   and there.idempotency_key >= split_part(tick.key, '-', 1)
                   and there.idempotency_key <= 'schedule:' || split_part(tick.key, '-', 2)) end,
           now, case when place = 'none' then now end
    from tick, clock
),
made_ready as (
    insert into rota.ready (rank, id, job_id, slot, ids)
    select rank, min(id), job_id, by_config, array_agg(id) from tick where place = 'ready'
    group by job_id, rank, by_config, rota.handful(id)
),
made_wait as (
    insert into rota.waiting (rank, id, job_id, config_id, by_config, by_job)
    select rank, id, job_id, config_id, by_config, by_job from tick where place = 'waiting'
),
took_slot as (
    insert into rota.scheduler_locks (lock_token, config_id, timeout_seconds, acquired_at, expires_at)
    select id, config_id, timeout_seconds, now, 'infinity'
    from tick, clock where place = 'ready' and by_config
),
advanced as (
    update rota.scheduler_configs c
    set next_run_at = s.next_run_at, invalid_reason = s.invalid_reason, version = c.version + 1,
        paused_at = null, resumed_at = null, tzdata = $19,
        run_count = c.run_count + coalesce(s.runs, 0), last_run_id = coalesce(s.newest, c.last_run_id)
    from (select f.*, r.runs, r.newest,
                 (select d.ctid from rota.scheduler_configs d where d.id = f.id and d.version = f.version) as place
          from unnest($15::integer[], $16::bigint[], $17::timestamptz[], $18::text[])
              as f (id, version, next_run_at, invalid_reason)
          left join (select config_id, count(*) as runs, max(id) as newest from tick where place <> 'none'
                     group by config_id) as r on r.config_id = f.id) as s
    where c.ctid = s.place
    returning c.id
)
select count(*) filter (where place = 'ready') as ready, count(*) filter (where place <> 'none') as runs,
       count(*) as made, (select count(*) from advanced) as advanced
from tick

-- name: fire_due.probe
update rota.jobs set breaker = 'half_open', breaker_changed_at = rota.rota_now() where job_id = any($1::text[])

-- name: fire_due.cancel
insert into rota.cancellations (run_id, replica_id)
select run_id, replica_id from rota.scheduler_locks
where config_id = any($1::integer[]) and replica_id is not null and run_id is not null
on conflict (run_id) do update set replica_id = excluded.replica_id

-- name: promote_due
with due as (
    delete from rota.delayed
    where ctid = any(array(
        select ctid from rota.delayed where run_at <= (select rota.rota_now())
        order by run_at limit $1 for update skip locked))
    returning id
),
placed as (
    select r.id, r.job_id, r.config_id, rota.rank(r.run_at, r.priority) as rank,
           coalesce(c.concurrency_limit > 0, false) as by_config, coalesce(j.concurrency_limit > 0, false) as by_job
    from due
    join rota.job_runs r on r.id = due.id and r.state = 'queued'
    left join rota.scheduler_configs c on c.id = r.config_id
    left join rota.jobs j on j.job_id = r.job_id
),
made_ready as (
    insert into rota.ready (rank, id, job_id, slot, ids)
    select rank, id, job_id, false, array[id] from placed where not by_config and not by_job
    on conflict do nothing
),
made_wait as (
    insert into rota.waiting (rank, id, job_id, config_id, by_config, by_job)
    select rank, id, job_id, config_id, by_config, by_job from placed where by_config or by_job
    on conflict do nothing
)
select count(*) from due

-- name: admit_waiting.schedules
-- One step of the index for each schedule that has runs waiting, however many.
with recursive step (config_id) as (
    (select config_id from rota.waiting where by_config order by config_id limit 1)
    union all
    select (select w.config_id from rota.waiting w where w.by_config and w.config_id > step.config_id
            order by w.config_id limit 1)
    from step where step.config_id is not null
)
select c.id from rota.scheduler_configs c where c.id = any(array(select config_id from step))
order by c.id for update skip locked

-- name: admit_waiting.jobs
with recursive step (job_id) as (
    (select job_id from rota.waiting where by_job order by job_id limit 1)
    union all
    select (select w.job_id from rota.waiting w where w.by_job and w.job_id > step.job_id order by w.job_id limit 1)
    from step where step.job_id is not null
)
select j.job_id from rota.jobs j where j.job_id = any(array(select job_id from step))
order by j.job_id for update skip locked

-- name: admit_waiting
-- Runs after the rows above are locked, so the counts cannot be outdated; a limit of 0 is no limit.
with clock as materialized (select rota.rota_now() as now),
by_schedule as (
    select w.id
    from unnest($1::integer[]) as k (id)
    join rota.scheduler_configs c on c.id = k.id
    cross join lateral (
        select w.id from rota.waiting w where w.by_config and w.config_id = c.id order by w.rank, w.id
        limit case when c.concurrency_limit = 0 then 1000 else greatest(0, c.concurrency_limit - (
            select count(*) from rota.scheduler_locks l
            where l.config_id = c.id and l.expires_at > (select now from clock))) end
    ) w
),
by_job as (
    select w.id
    from unnest($2::text[]) as k (job_id)
    join rota.jobs j on j.job_id = k.job_id
    cross join lateral (
        -- A run whose schedule is full does not hold up those that could start.
        select w.id from rota.waiting w
        where w.by_job and w.job_id = j.job_id and (not w.by_config or w.id in (select id from by_schedule))
        order by w.rank, w.id
        limit case when j.concurrency_limit = 0 then 1000 else greatest(0, j.concurrency_limit - (
            select count(*) from rota.scheduler_locks l
            where l.job_id = j.job_id and l.expires_at > (select now from clock))) end
    ) w
),
admitted as (
    delete from rota.waiting w
    where w.id in (select id from by_schedule union select id from by_job)
        and (not w.by_config or w.id in (select id from by_schedule))
        and (not w.by_job or w.id in (select id from by_job))
    returning w.*
),
runnable as (
    select a.*, coalesce(c.lock_timeout_seconds, 300) as timeout_seconds
    from admitted a
    join rota.job_runs r on r.id = a.id and r.state = 'queued'
    left join rota.scheduler_configs c on c.id = a.config_id
    for update of r  -- somebody may be cancelling it
),
took_slot as (
    insert into rota.scheduler_locks (config_id, job_id, lock_token, timeout_seconds, acquired_at, expires_at)
    select case when by_config then config_id end, case when by_job then job_id end, id, timeout_seconds, now, 'infinity'
    from runnable, clock
    on conflict (lock_token) do nothing
),
made_ready as (
    insert into rota.ready (rank, id, job_id, slot, ids) select rank, id, job_id, true, array[id] from runnable
    on conflict do nothing
)
select count(*) from admitted

-- name: agenda
with clock as materialized (select rota.rota_now() as now)
select
    exists (select from rota.priorities p cross join lateral (
                select from rota.scheduler_configs c
                where c.enabled and c.invalid_reason is null and c.priority = p.priority
                    and coalesce(c.next_run_at, '-infinity') <= (select now from clock) and c.job_id = any($1::text[])
                limit 1) as due) as due,
    exists (select from rota.delayed where run_at <= (select now from clock)) as delayed,
    extract(epoch from (
        select min(later.at) from rota.priorities p cross join lateral (
            select c.next_run_at as at from rota.scheduler_configs c
            where c.enabled and c.invalid_reason is null and c.priority = p.priority
                and coalesce(c.next_run_at, '-infinity') > (select now from clock) and c.job_id = any($1::text[])
            order by coalesce(c.next_run_at, '-infinity') limit 1) as later
    ) - (select now from clock))::float8 as due_in,
    extract(epoch from (
        select run_at from rota.delayed where run_at > (select now from clock) order by run_at limit 1
    ) - (select now from clock))::float8 as delayed_in,
    exists (select from rota.waiting) as waiting

-- name: mark_unknown
update rota.scheduler_configs c
set invalid_reason = format('unknown job %L: no running replica declares it; fix job_id, or deploy code that declares it',
                            c.job_id)
where c.enabled and c.invalid_reason is null
    and c.priority = any(array(select priority from rota.priorities))
    and coalesce(c.next_run_at, '-infinity') <= (select rota.rota_now())
    and exists (select from rota.replicas)
    and not exists (select from rota.replicas r where r.jobs ? c.job_id)
returning c.id, c.invalid_reason

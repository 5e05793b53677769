-- name: declare.jobs
insert into jobs (job_id, concurrency_limit, breaker_failures, breaker_pause) values (?1, ?2, ?3, ?4)
on conflict (job_id) do update
    set concurrency_limit = excluded.concurrency_limit,
        breaker_failures = excluded.breaker_failures,
        breaker_pause = excluded.breaker_pause
    where (jobs.concurrency_limit, jobs.breaker_failures, jobs.breaker_pause)
        is not (excluded.concurrency_limit, excluded.breaker_failures, excluded.breaker_pause)

-- name: declare.existing
select id, declared from scheduler_configs where job_id = ?1 and name = ?2

-- name: declare.outdated
-- Not due yet, and computed by older rules than ours.
select id, cron, timezone from scheduler_configs
where job_id in (select value from json_each(?1)) and timezone is not null and tzdata < ?2 and next_run_at > ?3

-- name: declare.recompute
update scheduler_configs set next_run_at = ?2, tzdata = ?3, version = version + 1 where id = ?1

-- name: declare.revalidate
update scheduler_configs set invalid_reason = null
where invalid_reason is not null and job_id in (select value from json_each(?1))

-- name: put_schedule
insert into scheduler_configs as c
    (job_id, name, cron, timezone, enabled, priority, concurrency_limit, lock_timeout_seconds, parameters,
     overlap, catch_up, catch_up_limit, skip_if_older_than_seconds, declared, created_at, updated_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?15)
on conflict (job_id, name) do update
    set cron = excluded.cron, timezone = excluded.timezone, enabled = excluded.enabled, priority = excluded.priority,
        concurrency_limit = excluded.concurrency_limit, lock_timeout_seconds = excluded.lock_timeout_seconds,
        parameters = excluded.parameters, overlap = excluded.overlap, catch_up = excluded.catch_up,
        catch_up_limit = excluded.catch_up_limit,
        skip_if_older_than_seconds = excluded.skip_if_older_than_seconds,
        declared = coalesce(excluded.declared, c.declared)
returning id

-- name: revise_schedules.add
insert into scheduler_configs
    (job_id, name, cron, timezone, enabled, priority, concurrency_limit, lock_timeout_seconds, parameters,
     overlap, catch_up, catch_up_limit, skip_if_older_than_seconds, created_at, updated_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?14)
on conflict (job_id, name) do nothing
returning id

-- name: delete_schedule
delete from scheduler_configs where id = ?1 returning id

-- name: list_schedules
select c.id, c.job_id, c.name, c.cron, c.timezone, c.enabled, c.priority, c.concurrency_limit, c.lock_timeout_seconds,
       c.parameters, c.overlap, c.catch_up, c.catch_up_limit, c.skip_if_older_than_seconds,
       c.version, c.next_run_at, c.paused_at, c.resumed_at, c.invalid_reason, c.declared,
       c.created_at, c.updated_at, s.last_run_at, s.last_state, s.run_count, s.failure_count, s.last_error
from scheduler_configs c join schedule_stats s on s.config_id = c.id
where (:id is null or c.id = :id) and (:job_id is null or c.job_id = :job_id) and (:name is null or c.name = :name)
order by c.job_id, c.name

-- name: trigger.schedule
select job_id, priority, parameters from scheduler_configs where id = ?1

-- name: trigger
insert into job_runs
    (id, job_id, config_id, idempotency_key, correlation_id, parameters, priority, run_at, due_at, created_at)
values (:id, :job_id, :config_id, :key, cast(:id as text), :parameters, :priority, :now, :due_at, :now)
on conflict do nothing
returning id

-- name: trigger.counted
update scheduler_configs set run_count = run_count + ?2, last_run_id = ?3 where id = ?1

-- name: trigger.existing
select id from job_runs where config_id = ?1 and idempotency_key = ?2

-- name: trigger.missed
-- Ticks that were summed up as missed have rows of their own now. Keys sort as their instants do, and '.' comes after
-- the '-' of a stretch's. An expression that was changed since may have more ticks in it than were missed.
update job_runs
set missed_count = max(0, missed_count - (
    select count(*) from json_each(?2) t where t.value between job_runs.missed_from and job_runs.missed_to))
where config_id = ?1 and idempotency_key < ?3 and missed_count > 0
    and exists (select 1 from json_each(?2) t where t.value between job_runs.missed_from and job_runs.missed_to)

-- name: ledger
select id, job_id, config_id, idempotency_key, correlation_id, parent_id, parameters, priority, state, reason, attempt,
       losses, run_at, due_at, missed_from, missed_to, missed_count, replica_id, created_at, started_at, finished_at,
       progress, result, error
from job_runs
where config_id = ?1 and idempotency_key like 'schedule:%' and due_at <= ?3 and coalesce(missed_to, due_at) >= ?2
order by due_at

-- name: tripped_breakers
select job_id, breaker, consecutive_failures, breaker_changed_at as changed_at, breaker_pause as pause
from jobs where breaker <> 'closed' and breaker_changed_at is not null order by job_id

-- name: mark_unknown.any
select id, 'unknown job ' || quote(job_id)
    || ': no running replica declares it; fix job_id, or deploy code that declares it'
from scheduler_configs indexed by scheduler_configs_due
where enabled = 1 and invalid_reason is null and coalesce(next_run_at, '') <= :now
    and exists (select 1 from replicas)
    and job_id not in (select j.value from replicas r, json_each(r.jobs) j)

-- name: mark_unknown
update scheduler_configs set invalid_reason = ?2 where id = ?1

-- name: agenda
select
    exists (select 1 from scheduler_configs indexed by scheduler_configs_due
            where enabled = 1 and invalid_reason is null and coalesce(next_run_at, '') <= :now
                and job_id in (select value from json_each(:jobs))),
    exists (select 1 from delayed where run_at <= :now),
    (select next_run_at from scheduler_configs indexed by scheduler_configs_due
     where enabled = 1 and invalid_reason is null and coalesce(next_run_at, '') > :now
         and job_id in (select value from json_each(:jobs))
     order by coalesce(next_run_at, '') limit 1),
    (select run_at from delayed where run_at > :now order by run_at limit 1),
    exists (select 1 from waiting)

-- name: fire_due.any
select exists (
    select 1 from scheduler_configs indexed by scheduler_configs_due
    where enabled = 1 and invalid_reason is null and coalesce(next_run_at, '') <= :now
        and job_id in (select value from json_each(:jobs)) and id not in (select value from json_each(:leave)))

-- name: fire_due.priorities
-- One step of the index for each priority that there is, however many schedules have it.
with recursive step (priority) as (
    select min(priority) from scheduler_configs indexed by scheduler_configs_order
    where enabled = 1 and invalid_reason is null
    union all
    select (select min(c.priority) from scheduler_configs c indexed by scheduler_configs_order
            where c.enabled = 1 and c.invalid_reason is null and c.priority > step.priority)
    from step where step.priority is not null
)
select priority from step where priority is not null

-- name: fire_due.claim
-- The write lock is held, so nobody else makes these ticks. By a row in schedule_holds an operator holds a schedule.
select c.id, c.version, c.job_id, c.cron, c.timezone, c.parameters, c.next_run_at, c.paused_at, c.resumed_at,
       coalesce(json_extract(c.declared, '$.parameters') = c.parameters, 0) as as_declared,
       c.priority, c.concurrency_limit, c.lock_timeout_seconds, c.overlap, c.catch_up, c.catch_up_limit,
       c.skip_if_older_than_seconds,
       (select count(*) from scheduler_locks l where l.config_id = c.id and l.expires_at > :now) as held,
       (select count(*) from waiting w where w.by_config = 1 and w.config_id = c.id) as waiting,
       coalesce(j.concurrency_limit > 0, 0) as job_limited,
       coalesce(j.breaker, 'closed') as breaker,
       case when j.breaker <> 'closed' then j.breaker_changed_at end as breaker_retry_at,
       j.breaker_pause as pause,
       :advisory and exists (select 1 from schedule_holds h where h.config_id = c.id) as contended
from scheduler_configs c indexed by scheduler_configs_order left join jobs j on j.job_id = c.job_id
where c.enabled = 1 and c.invalid_reason is null and c.priority = :priority and coalesce(c.next_run_at, '') <= :now
    and c.job_id in (select value from json_each(:jobs)) and c.id not in (select value from json_each(:leave))
order by coalesce(c.next_run_at, ''), c.id
limit :limit

-- name: fire_due.write
insert into job_runs
    (id, job_id, config_id, idempotency_key, correlation_id, parameters, priority, state, reason, run_at, due_at,
     created_at, finished_at)
values /* rows */
on conflict do nothing

-- name: fire_due.missed
insert into job_runs
    (id, job_id, config_id, idempotency_key, correlation_id, parameters, priority, state, reason, run_at, due_at,
     created_at, finished_at, missed_from, missed_to, missed_count)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
        -- Ticks of the stretch that somebody made by hand have rows of their own. Keys sort as their instants do.
        ?16 - (
            select count(*) from job_runs there
            where there.config_id = ?3 and there.missed_count is null
                and there.idempotency_key >= substr(?4, 1, instr(?4, '-') - 1)
                and there.idempotency_key <= 'schedule:' || substr(?4, instr(?4, '-') + 1)))
on conflict do nothing

-- name: fire_due.first
-- The best rank that is ready in each lane.
select lane, min(rank) from (
    select json_extract(value, '$[1]') as lane,
           (select min(r.rank) from ready r where r.job_id = json_extract(value, '$[0]')) as rank
    from json_each(?1))
where rank is not null group by lane

-- name: fire_due.ready
insert into ready (job_id, rank, id, slot)
select job_id, rank, id, ?2 from ranks where id in (select value from json_each(?1))

-- name: fire_due.wait
insert into waiting (rank, id, job_id, config_id, by_config, by_job)
select rank, id, job_id, config_id, ?2, ?3 from ranks where id in (select value from json_each(?1))

-- name: fire_due.slot
insert into scheduler_locks (config_id, run_id, timeout_seconds, acquired_at, expires_at)
values /* rows */

-- name: fire_due.advance
with decided (id, version, next_run_at, invalid_reason, tzdata, runs, newest) as (values /* rows */)
update scheduler_configs as c
set next_run_at = d.next_run_at, invalid_reason = d.invalid_reason, version = c.version + 1, paused_at = null,
    resumed_at = null, tzdata = d.tzdata, run_count = c.run_count + d.runs,
    last_run_id = coalesce(d.newest, c.last_run_id)
from decided d where c.id = d.id and c.version = d.version

-- name: fire_due.probe
update jobs set breaker = 'half_open', breaker_changed_at = ?2 where job_id in (select value from json_each(?1))

-- name: fire_due.cancel
insert into cancellations (run_id, replica_id, requested_at)
select run_id, replica_id, ?2 from scheduler_locks
where config_id in (select value from json_each(?1)) and replica_id is not null and run_id is not null
on conflict do nothing

-- name: promote_due.any
select exists (select 1 from delayed where run_at <= ?1)

-- name: promote_due
delete from delayed
where (run_at, id) in (select run_at, id from delayed where run_at <= ?1 order by run_at limit ?2)
returning id

-- name: promote_due.ready
insert into ready (rank, id, job_id, slot)
select k.rank, r.id, r.job_id, 0
from json_each(?1) i
join job_runs r on r.id = i.value and r.state = 'queued'
join ranks k on k.id = r.id
left join scheduler_configs c on c.id = r.config_id
left join jobs j on j.job_id = r.job_id
where not coalesce(c.concurrency_limit > 0, 0) and not coalesce(j.concurrency_limit > 0, 0)
on conflict do nothing

-- name: promote_due.wait
insert into waiting (rank, id, job_id, config_id, by_config, by_job)
select k.rank, r.id, r.job_id, r.config_id, coalesce(c.concurrency_limit > 0, 0), coalesce(j.concurrency_limit > 0, 0)
from json_each(?1) i
join job_runs r on r.id = i.value and r.state = 'queued'
join ranks k on k.id = r.id
left join scheduler_configs c on c.id = r.config_id
left join jobs j on j.job_id = r.job_id
where coalesce(c.concurrency_limit > 0, 0) or coalesce(j.concurrency_limit > 0, 0)
on conflict do nothing

-- name: admit_waiting.schedules
-- How many each may admit; a limit of 0 is no limit.
select c.id, case when c.concurrency_limit = 0 then 1000 else c.concurrency_limit - (
    select count(*) from scheduler_locks l where l.config_id = c.id and l.expires_at > ?1) end
from scheduler_configs c
where c.id in (select distinct config_id from waiting where by_config = 1)

-- name: admit_waiting.jobs
select j.job_id, case when j.concurrency_limit = 0 then 1000 else j.concurrency_limit - (
    select count(*) from scheduler_locks l where l.job_id = j.job_id and l.expires_at > ?1) end
from jobs j
where j.job_id in (select distinct job_id from waiting where by_job = 1)

-- name: admit_waiting.of_schedule
select id, by_job from waiting where by_config = 1 and config_id = ?1 order by rank, id limit ?2

-- name: admit_waiting.of_job
-- A run whose schedule is full does not hold up those that could start.
select id, by_config from waiting
where by_job = 1 and job_id = ?1 and (by_config = 0 or id in (select value from json_each(?3)))
order by rank, id limit ?2

-- name: admit_waiting.slots
insert into scheduler_locks (config_id, job_id, run_id, timeout_seconds, acquired_at, expires_at)
select case when w.by_config then w.config_id end, case when w.by_job then w.job_id end, w.id,
       coalesce(c.lock_timeout_seconds, 300), ?2, '9999-12-31 23:59:59.999999'
from waiting w
join job_runs r on r.id = w.id and r.state = 'queued'
left join scheduler_configs c on c.id = w.config_id
where w.id in (select value from json_each(?1))
on conflict (run_id) do nothing

-- name: admit_waiting.ready
insert into ready (rank, id, job_id, slot)
select w.rank, w.id, w.job_id, 1
from waiting w join job_runs r on r.id = w.id and r.state = 'queued'
where w.id in (select value from json_each(?1))
on conflict do nothing

-- name: admit_waiting
delete from waiting where id in (select value from json_each(?1))

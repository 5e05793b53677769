-- name: enqueue.ids
update sqlite_sequence set seq = seq + ?1 where name = 'job_runs' returning seq

-- name: enqueue
insert into job_runs
    (id, job_id, idempotency_key, correlation_id, parent_id, parameters, priority, run_at, created_at)
values /* rows */
on conflict do nothing

-- name: enqueue.made
select json_group_array(id) from job_runs where id between ?1 and ?2

-- name: enqueue.existing
select id from job_runs
where job_id = ?1 and idempotency_key = ?2 and config_id is null and due_at is null and idempotency_key is not null

-- name: enqueue.ready
-- Of the runs just made, which have the ids in between; likewise the next two.
insert into ready (job_id, rank, id, slot)
select job_id, rank, id, 0 from ranks
where id between ?1 and ?2 and run_at <= ?3 and job_id not in (select job_id from jobs where concurrency_limit > 0)

-- name: enqueue.wait
insert into waiting (rank, id, job_id, by_config, by_job)
select rank, id, job_id, 0, 1 from ranks
where id between ?1 and ?2 and run_at <= ?3 and job_id in (select job_id from jobs where concurrency_limit > 0)

-- name: enqueue.later
insert into delayed (run_at, id) select run_at, id from job_runs where id between ?1 and ?2 and run_at > ?3

-- name: enqueue.delayed
insert into delayed (run_at, id) values (?1, ?2) on conflict do nothing

-- name: claim_runs.any
select exists (select 1 from ready where job_id in (select value from json_each(?1)))

-- name: claim_runs.look
-- The clock, and the names that have something ready.
select (select now from moment),
       (select json_group_array(value) from json_each(?1) where exists (select 1 from ready where job_id = value))

-- name: claim_runs.best
-- All of it as one value: each row fetched gives up the interpreter's lock, and may wait 5 ms to have it back.
-- The caller writes one arm for each name; SQLite merges them, a walk along the index each.
select json_group_array(json_array(
    p.id, p.job_id, p.rank, p.slot, case when r.state = 'queued' then r.attempt + 1 end, r.losses, r.parameters,
    r.idempotency_key, coalesce(r.due_at, r.created_at), r.config_id, r.correlation_id))
from (/* arms */ order by rank, id limit ?) p left join job_runs r on r.id = p.id

-- name: claim_runs.arm
select job_id, rank, id, slot from ready where job_id = ?

-- name: claim_runs.pop
delete from ready where job_id = ?1 and (rank, id) <= (?2, ?3)

-- name: claim_runs
update job_runs
set state = 'running', lock_token = :token, replica_id = :replica_id, attempt = attempt + 1, started_at = :now,
    error = null, progress = null
where id in (select value from json_each(:ids)) and state = 'queued'

-- name: claim_runs.batch
insert into claims (token, replica_id, ids) values (?1, ?2, ?3)

-- name: claim_runs.void
-- Whoever has the token first, has it.
insert into claims (token, replica_id, ids) values (?1, ?2, '[]') on conflict do nothing

-- name: claim_runs.hold
update scheduler_locks
set replica_id = ?1, expires_at = strftime('%Y-%m-%d %H:%M:%f000', ?2, timeout_seconds || ' seconds')
where run_id in (select value from json_each(?3))

-- name: claim_runs.again
select r.id, r.job_id, r.attempt, r.losses, r.parameters, r.idempotency_key, coalesce(r.due_at, r.created_at), r.config_id, r.correlation_id,
       exists (select 1 from scheduler_locks l where l.run_id = r.id), k.rank
from claims c, json_each(c.ids) i
join job_runs r on r.id = i.value and r.lock_token = c.token and r.state = 'running'
join ranks k on k.id = r.id
where c.token = ?1
order by k.rank, r.id

-- name: finish_runs.look
-- The clock, and whether anybody wants any run to stop.
select now, exists (select 1 from cancellations) from moment

-- name: finish_runs.refused
-- Of the runs that were claimed with this token, those that do not have it any more, or are not running.
select json_group_array(i.value) from json_each(?1) i left join job_runs r on r.id = i.value
where r.lock_token is not ?2 or r.state <> 'running'

-- name: finish_runs.plain
-- The claim cleared what an earlier attempt left.
update job_runs set state = 'succeeded', finished_at = ?2
where id in (select value from json_each(?1)) and state = 'running'

-- name: finish_runs.held
select json_group_array(json_array(id, lock_token, job_id, config_id, started_at)) from job_runs
where id in (select value from json_each(?1)) and state = 'running'

-- name: finish_runs
update job_runs
set state = ?2, result = ?3, error = ?4, attempt = attempt - ?5, finished_at = ?6, run_at = coalesce(?7, run_at)
where id in (select value from json_each(?1))

-- name: finish_runs.free
delete from scheduler_locks where run_id in (select value from json_each(?1)) returning config_id, job_id

-- name: finish_runs.wanted
select exists (select 1 from waiting where by_config = 1 and config_id in (select value from json_each(?1)))
    or exists (select 1 from waiting where by_job = 1 and job_id in (select value from json_each(?2)))

-- name: finish_runs.close
delete from claims where token in (select value from json_each(?1))

-- name: finish_runs.answer
delete from cancellations where run_id in (select value from json_each(?1))

-- name: finish_runs.count
insert into schedule_failures (config_id, failure_count, last_error) values (?1, ?2, ?3)
on conflict (config_id) do update
    set failure_count = failure_count + excluded.failure_count, last_error = coalesce(excluded.last_error, last_error)

-- name: finish_runs.judge
update jobs
set consecutive_failures = case when :worked then 0 else consecutive_failures + :failures end,
    breaker = case when :worked then 'closed'
                   when breaker = 'half_open' or consecutive_failures + :failures >= breaker_failures then 'open'
                   else breaker end,
    breaker_changed_at = case
        when :worked or breaker = 'half_open'
            or (breaker = 'closed' and consecutive_failures + :failures >= breaker_failures) then :now
        else breaker_changed_at end
where job_id = :job_id and breaker_failures is not null
    and (:failures > 0 or consecutive_failures > 0 or breaker <> 'closed')

-- name: finish_runs.unwanted
select run_id from cancellations

-- name: finish_runs.already
-- Outcomes that an earlier call recorded, whose reply was lost.
select id from job_runs where id = ?1 and lock_token = ?2 and state <> 'running'

-- name: report_progress
update job_runs set progress = ?3 where id = ?1 and lock_token = ?2 and state = 'running'

-- name: get_runs
select id, job_id, config_id, idempotency_key, correlation_id, parent_id, parameters, priority, state, reason, attempt,
       losses, run_at, due_at, missed_from, missed_to, missed_count, replica_id, created_at, started_at, finished_at,
       progress, result, error
from job_runs where id in (select value from json_each(?1)) order by id

-- name: find_runs
-- The conditions are put in by the caller, only those that narrow: SQLite plans once, for whatever is written here.
select id, job_id, config_id, idempotency_key, correlation_id, parent_id, parameters, priority, state, reason, attempt,
       losses, run_at, due_at, missed_from, missed_to, missed_count, replica_id, created_at, started_at, finished_at,
       progress, result, error
from job_runs where /* conditions */ order by id desc limit :limit

-- name: find_runs.longest
started_at is not null
order by julianday(coalesce(finished_at, (select now from moment))) - julianday(started_at) desc, id desc limit

-- name: running_runs
select id, job_id, config_id, idempotency_key, correlation_id, parent_id, parameters, priority, state, reason, attempt,
       losses, run_at, due_at, missed_from, missed_to, missed_count, replica_id, created_at, started_at, finished_at,
       progress, result, error
from job_runs where id in (select i.value from claims c, json_each(c.ids) i) and state = 'running' order by id

-- name: cancel_run.find
select r.state, r.replica_id, r.job_id, k.rank, r.run_at from job_runs r join ranks k on k.id = r.id where r.id = ?1

-- name: cancel_run
update job_runs set state = 'cancelled', finished_at = ?2 where id = ?1

-- name: cancel_run.ask
insert into cancellations (run_id, replica_id, requested_at) values (?1, ?2, ?3) on conflict do nothing

-- name: cancel_run.free
delete from scheduler_locks where run_id = ?1

-- name: cancel_run.ready
delete from ready where job_id = ?2 and rank = ?3 and id = ?1

-- name: cancel_run.delayed
delete from delayed where run_at = ?2 and id = ?1

-- name: cancel_run.waiting
delete from waiting where id = ?1

-- name: retry_run.find
select state, missed_count, config_id from job_runs where id = ?1

-- name: retry_run.forgiven
-- It has not failed in the end.
update schedule_failures set failure_count = max(failure_count - 1, 0) where config_id = ?1

-- name: retry_run
update job_runs
set state = 'queued', attempt = 0, losses = 0, run_at = ?2, reason = null, error = null, result = null,
    finished_at = null
where id = ?1

-- name: prune.old
-- In the order of their making, so that the reader can stop at the first one that is too young.
select id, created_at < ?1, coalesce(finished_at < ?1, 0)
       and (config_id is null or idempotency_key is null or idempotency_key <> (
            select max(n.idempotency_key) from job_runs n where n.config_id = r.config_id))
       and (select c.last_run_id from scheduler_configs c where c.id = r.config_id) is not id
from job_runs r order by id

-- name: prune
delete from job_runs where id in (select value from json_each(?1))

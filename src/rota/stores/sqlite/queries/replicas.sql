-- name: join.id
update sqlite_sequence set seq = seq + 1 where name = 'replicas' returning seq

-- name: join
insert into replicas (id, name, host, pid, jobs, session, locked, started_at, beat_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)

-- name: join.resume
update replicas set beat_at = ?2 where id = ?1 returning id

-- name: beat.before
select beat_at from replicas where id = ?1

-- name: beat
-- Life is measured in real time: moving the store's clock must not kill anybody.
update replicas set beat_at = ?2 where id = ?1

-- name: beat.renew
update scheduler_locks
set expires_at = strftime('%Y-%m-%d %H:%M:%f000', ?2, timeout_seconds || ' seconds')
where replica_id = ?1
    and expires_at < strftime('%Y-%m-%d %H:%M:%f000', ?2, (timeout_seconds * 0.5) || ' seconds')

-- name: beat.cancelled
select run_id from cancellations where replica_id = ?1

-- name: beat.news
select exists (select 1 from ready),
       (select next_run_at from scheduler_configs indexed by scheduler_configs_due
        where enabled = 1 and invalid_reason is null and coalesce(next_run_at, '') > ''
        order by coalesce(next_run_at, '') limit 1),
       (select min(run_at) from delayed),
       exists (select 1 from waiting) or exists (
           select 1 from scheduler_configs indexed by scheduler_configs_due
           where enabled = 1 and invalid_reason is null and coalesce(next_run_at, '') = ''),
       (select count(*) from replicas)

-- name: beat.caretaker
select c.replica_id, r.beat_at, r.locked from caretaker c left join replicas r on r.id = c.replica_id

-- name: beat.take_care
update caretaker set replica_id = ?1

-- name: beat.look
select id, beat_at < ?2, locked from replicas where id <> ?1 order by id

-- name: bury.any
select exists (select 1 from scheduler_locks where expires_at <= ?1
               and coalesce(replica_id not in (select id from replicas where beat_at > ?2), 1))
    or exists (select 1 from claims where replica_id not in (select id from replicas))

-- name: bury.replicas
select id, beat_at < ?2, locked from replicas where id in (select value from json_each(?1)) order by id

-- name: bury.remove
delete from replicas where id in (select value from json_each(?1))

-- name: bury.claims
delete from claims
where replica_id in (select value from json_each(?1)) or replica_id not in (select id from replicas)
returning token, ids

-- name: bury.runs
-- Its token is taken from a lost run: whoever had it is told so when it comes back with an outcome.
update job_runs
set state = case when id in (select run_id from cancellations) then 'cancelled' else 'queued' end,
    finished_at = case when id in (select run_id from cancellations) then :now end,
    losses = losses + :losses, lock_token = null
where state = 'running' and id in (
    -- A holder that beats has its slots renewed; if one expired before that (a clock that leapt), it still holds it.
    select run_id from scheduler_locks where expires_at <= :now and run_id is not null
        and coalesce(replica_id not in (select id from replicas where beat_at > :alive), 1)
    union
    select r.id from json_each(:claimed) i
    join job_runs r on r.id = json_extract(i.value, '$[0]') and r.lock_token = json_extract(i.value, '$[1]'))
returning id, state

-- name: bury.answer
delete from cancellations
where run_id in (select value from json_each(?1)) or replica_id in (select value from json_each(?2))

-- name: bury.keep
update scheduler_locks set replica_id = null, expires_at = '9999-12-31 23:59:59.999999'
where run_id in (select value from json_each(?1))

-- name: bury.free
delete from scheduler_locks
where run_id in (select value from json_each(?1))
    or (expires_at <= ?2 and coalesce(replica_id not in (select id from replicas where beat_at > ?3), 1))

-- name: bury.ready
insert into ready (rank, id, job_id, slot)
select k.rank, r.id, r.job_id, exists (select 1 from scheduler_locks l where l.run_id = r.id)
from job_runs r join ranks k on k.id = r.id where r.id in (select value from json_each(?1))
on conflict do nothing

-- name: list_replicas
select id, name, host, pid, jobs, started_at, beat_at, max(86400 * (julianday(real) - julianday(beat_at)), 0)
from replicas, moment order by id

-- name: hint.news
-- What a commit may have been about: something to claim, something to schedule, somebody to stop, a lock.
select exists (select 1 from ready),
       (select coalesce(next_run_at, '') from scheduler_configs indexed by scheduler_configs_due
        where enabled = 1 and invalid_reason is null order by coalesce(next_run_at, '') limit 1),
       (select min(run_at) from delayed), exists (select 1 from waiting),
       (select group_concat(run_id) from cancellations),
       (select group_concat(role || ' ' || term || ' ' || coalesce(replica_id, '') || ' ' || coalesce(step_down, ''))
        from roles),
       (select count(*) || ' ' || total(token) from lock_holders)

-- name: hint.version
-- A commit is the hint: this number changes when another connection has made one.
pragma data_version

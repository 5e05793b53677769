-- name: join.id
select nextval('rota.replicas_id_seq')::integer

-- name: join.identity
-- A promoted standby has another timeline, a restored cluster another system identifier.
select format('system %s, timeline %s', system_identifier, timeline_id) from pg_control_system(), pg_control_checkpoint()

-- name: join.database
-- The same on every way to it, and on its standbys; another server has another system identifier.
select format('system %s, database %s, oid %s', system_identifier, datname, oid)
from pg_control_system(), pg_database where datname = current_database()

-- name: join.lock
select pg_try_advisory_lock($1, $2)

-- name: join
insert into rota.replicas (id, name, host, pid, jobs, session, locked, started_at, beat_at)
values ($1, $2, $3, $4, $5::jsonb, $6, $7, clock_timestamp(), clock_timestamp())

-- name: join.oust
-- The server may not have noticed yet that our own old connection is gone. Who only looks has another lock.
select pg_terminate_backend(pid) from pg_locks
where locktype = 'advisory' and classid = $1::bigint::oid and objid = $2::bigint::oid and granted
    and mode = 'ExclusiveLock'
    and database = (select oid from pg_database where datname = current_database()) and pid <> pg_backend_pid()

-- name: join.resume
update rota.replicas set beat_at = clock_timestamp() where id = $1 returning id

-- name: beat
-- Life is measured in real time: moving rota_now() must not kill anybody.
with clock as materialized (select rota.rota_now() as now),
before as (
    select extract(epoch from clock_timestamp() - beat_at)::float8 as age from rota.replicas where id = $1
),
beaten as (
    update rota.replicas set beat_at = clock_timestamp() where id = $1 returning id
),
renewed as (
    update rota.scheduler_locks l set expires_at = now + l.timeout_seconds * interval '1 second'
    from clock
    where l.lock_token = any(array(select unnest(c.ids) from rota.claims c where $2 and c.replica_id = $1))
        and l.replica_id = $1 and l.expires_at < now + l.timeout_seconds * interval '0.5 seconds'
),
-- Only the caretaker looks. After a restart of the server nobody holds a lock: those who have not beaten since get time
-- to come back.
looked as materialized (
    select r.id, case when r.locked then pg_try_advisory_xact_lock_shared($5, r.id) else false end as free,
           r.beat_at < clock_timestamp() - $6 * interval '1 second' as stale,
           r.beat_at < pg_postmaster_start_time()
               and pg_postmaster_start_time() > clock_timestamp() - $6 * interval '1 second' as excused
    from rota.replicas r where $3 and r.id <> $1
)
select exists (select from beaten) as alive, (select age from before) as age,
       array(select run_id from rota.cancellations where replica_id = $1) as cancelled,
       -- From the far end: at the near one may be all that was claimed since somebody took a snapshot.
       (select r.id from rota.ready r order by r.job_id desc, r.rank desc, r.id desc limit 1) is not null as ready,
       extract(epoch from least(
           (select min(coalesce(front.at, now)) from rota.priorities p cross join lateral (
                select c.next_run_at as at from rota.scheduler_configs c
                where c.enabled and c.invalid_reason is null and c.priority = p.priority
                order by coalesce(c.next_run_at, '-infinity') limit 1) as front),
           (select min(run_at) from rota.delayed),
           case when exists (select from rota.waiting) then now end) - now)::float8 as due_in,
       -- Without a session, no session lock: the first of those who live, if none of them has one ($7: this one has).
       case when not $7 then not exists (
                select from rota.replicas r where r.id <> $1 and (r.locked or r.id < $1)
                    and r.beat_at > clock_timestamp() - $6 * interval '1 second')
            when $3 then true
            else pg_try_advisory_lock($4, 0) end as caretaker,
       array(select id from looked where free and not excused) as suspects,
       array(select id from looked where stale and not excused) as stale,
       (select count(*) from rota.replicas) as replicas
from clock

-- name: bury.replicas
-- Looked at once more: one that came back holds its lock and beats.
with judged as materialized (
    select r.id, r.session, r.beat_at < clock_timestamp() - $3 * interval '1 second' as stale,
           case when r.locked then pg_try_advisory_xact_lock_shared($1, r.id) else false end as free
    from rota.replicas r where r.id = any($2::integer[]) order by r.id for update
)
delete from rota.replicas r using judged
where r.id = judged.id and (judged.free or judged.stale)
returning r.id, r.session

-- name: bury.dead
select r.session from rota.replicas r
where r.id = any($2::integer[])
    and (r.beat_at < clock_timestamp() - $3 * interval '1 second'
         or case when r.locked then pg_try_advisory_xact_lock_shared($1, r.id) else false end)

-- name: bury.end_sessions
-- Not our own: one may bury an earlier incarnation of itself.
select pg_terminate_backend(pid) from pg_stat_activity
where application_name = any($1::text[]) and application_name <> $2

-- name: bury.runs
with clock as materialized (select rota.rota_now() as now),
-- A holder that beats has its slots renewed; if one expired before that (a clock that leapt), it still holds it.
living as materialized (
    select id from rota.replicas where beat_at > clock_timestamp() - $3 * interval '1 second'
),
orphaned as (
    delete from rota.claims c
    where c.replica_id = any($1::integer[]) or not exists (select from rota.replicas r where r.id = c.replica_id)
    returning c.token, c.ids
),
suspended as (
    select lock_token as id, null::bigint as token from rota.scheduler_locks
    where expires_at <= (select now from clock) and lock_token > 0
        and not coalesce(replica_id = any(array(select id from living)), false)
    union all
    select unnest(ids), token from orphaned
),
lost as (
    select r.id, exists (select from rota.cancellations c where c.run_id = r.id) as unwanted
    from rota.job_runs r
    where r.state = 'running'
        and r.id = any(array(
            select s.id from suspended s
            where s.token is null or s.token = (select j.lock_token from rota.job_runs j where j.id = s.id)))
    order by r.id for update of r
),
back as (
    update rota.job_runs r
    set state = case when lost.unwanted then 'cancelled'::rota.run_state else 'queued' end,
        finished_at = case when lost.unwanted then now end,
        lock_token = null,
        losses = r.losses + $2
    from lost, clock where r.id = lost.id
    returning r.id, r.job_id, r.state, rota.rank(r.run_at, r.priority) as rank
),
answered as (
    delete from rota.cancellations c
    where c.run_id in (select id from lost) or c.replica_id = any($1::integer[])
),
kept as (
    update rota.scheduler_locks l set replica_id = null, expires_at = 'infinity'
    from back where l.lock_token = back.id and back.state = 'queued'
    returning l.lock_token
),
freed as (
    delete from rota.scheduler_locks l
    where l.lock_token in (select id from back where state = 'cancelled')
        or (l.expires_at <= (select now from clock) and not exists (select from back where back.id = l.lock_token)
            and not coalesce(l.replica_id = any(array(select id from living)), false))
        or (l.replica_id is null and l.lock_token > 0 and (
            select r.id from rota.job_runs r where r.id = l.lock_token and r.state in ('queued', 'running')) is null)
),
made_ready as (
    insert into rota.ready (rank, id, job_id, slot, ids)
    select rank, id, job_id, exists (select from rota.scheduler_locks l where l.lock_token = back.id), array[id]
    from back where state = 'queued'
    on conflict do nothing
)
select id, state::text as state from back

-- name: list_replicas
select id, name, host, pid, jobs::text as jobs, started_at, beat_at,
       greatest(extract(epoch from clock_timestamp() - beat_at), 0)::float8 as silent
from rota.replicas order by id

-- name: hint
-- A transaction that writes nothing else does not wait for the disk.
select pg_notify('rota', $1)

-- name: take_lock.look
-- The number of the last acquisition, and the holders as they are at this moment: one row at least.
-- After a restart of the server nobody has a session lock: those who have not beaten since get time to come back.
with seen as materialized (
    select h.*, r.beat_at,
           (h.replica_id is null and h.expires_at <= clock_timestamp()) or (h.replica_id is not null and r.id is null)
               or (coalesce(r.beat_at < clock_timestamp() - $3 * interval '1 second', false)
                   and not grace.excused) as over,
           case when r.locked then pg_try_advisory_xact_lock_shared($2, r.id) else false end
               and not grace.excused as free
    from rota.lock_holders h left join rota.replicas r on r.id = h.replica_id
    cross join lateral (
        select coalesce(r.beat_at < pg_postmaster_start_time()
            and pg_postmaster_start_time() > clock_timestamp() - $3 * interval '1 second', false) as excused
    ) as grace
    where h.name = $1
)
select coalesce((select fence from rota.locks where name = $1), 0) as last, seen.*
from (values (1)) as one left join seen on true

-- name: take_lock.remove
-- Looked at once more. A look that finds the session lock free keeps it so until this is done: whoever comes back
-- meanwhile finds its row gone.
with judged as materialized (
    select h.token, h.replica_id is not null and r.id is null as buried,
           h.replica_id is null and h.expires_at <= clock_timestamp() as expired,
           r.beat_at < clock_timestamp() - $3 * interval '1 second' as stale,
           case when r.locked then pg_try_advisory_xact_lock_shared($2, r.id) else false end as free,
           r.beat_at = dead.beat_at as silent,
           r.beat_at < pg_postmaster_start_time()
               and pg_postmaster_start_time() > clock_timestamp() - $3 * interval '1 second' as excused
    from rota.lock_holders h
    left join rota.replicas r on r.id = h.replica_id
    left join unnest($4::bigint[], $5::timestamptz[]) as dead (token, beat_at) on dead.token = h.token
    where h.name = $1
)
delete from rota.lock_holders h using judged
where h.token = judged.token
    and (buried or expired or ((stale or (free and silent)) and not excused))
returning h.token

-- name: take_lock
-- Only if nobody has taken it since the look: every acquisition changes the number, so those who were seen are all.
with won as (
    insert into rota.locks as l (name, fence) values ($1, 1)
    on conflict (name) do update set fence = l.fence + 1 where l.fence = $2
    returning fence
)
insert into rota.lock_holders (token, name, fence, holder, replica_id, expires_at)
select $3, $1, fence, $4, $5, clock_timestamp() + $6::float8 * interval '1 second' from won
where $5::integer is null or exists (select from rota.replicas where id = $5)
returning fence

-- name: renew_locks
update rota.lock_holders
set expires_at = case when replica_id is null then clock_timestamp() + $2::float8 * interval '1 second' end
where token = any($1::bigint[]) and (replica_id is not null or expires_at > clock_timestamp())
returning token

-- name: locks_of
select token from rota.lock_holders where replica_id = $1

-- name: release_lock
delete from rota.lock_holders where token = $1 returning replica_id is not null or expires_at > clock_timestamp()

-- name: list_locks
select h.*, r.beat_at,
       (h.replica_id is null and h.expires_at <= clock_timestamp()) or (h.replica_id is not null and r.id is null)
           or coalesce(r.beat_at < clock_timestamp() - $2 * interval '1 second', false) as over,
       case when r.locked then pg_try_advisory_xact_lock_shared($1, r.id) else false end as free
from rota.lock_holders h left join rota.replicas r on r.id = h.replica_id
order by h.name, h.fence

-- name: sweep_locks
delete from rota.lock_holders h
where h.expires_at < clock_timestamp() - interval '1 minute'
    or (h.replica_id is not null and not exists (select from rota.replicas r where r.id = h.replica_id))
returning 1

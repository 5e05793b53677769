-- name: stand
update rota.replicas set roles = $2::jsonb where id = $1 and roles <> $2::jsonb

-- name: stand.seats
insert into rota.roles (role) select unnest($1::text[]) on conflict do nothing

-- name: look_roles
-- Life is measured in real time: moving rota_now() must not end a term.
with judged as materialized (
    select id, name, roles, started_at, beat_at,
           not case when locked then pg_try_advisory_xact_lock_shared($1, id) else false end
               and beat_at > clock_timestamp() - $2 * interval '1 second' as alive
    from rota.replicas
    where roles <> '[]' or id = any(array(select replica_id from rota.roles where replica_id is not null))
),
candidates as (
    select coalesce(json_agg(json_build_array(
               id, name, roles, extract(epoch from clock_timestamp() - started_at)) order by id), '[]')::text as known
    from judged where roles <> '[]' and alive
)
select r.role, r.term, r.nonce, r.replica_id, r.holder, r.elector, r.won_at, r.released,
       coalesce(h.alive, false) as alive,
       extract(epoch from clock_timestamp() - coalesce(h.beat_at, r.ended_at, r.won_at))::float8 as ended,
       coalesce(r.step_down = r.term, false) as step_down,
       case when r.meant_until > clock_timestamp() then r.meant_for end as meant_for,
       c.known
from candidates c cross join rota.roles r left join judged h on h.id = r.replica_id
order by r.role

-- name: win_role
-- The row is locked before anything is judged. If somebody was faster, it has another term than the one that was seen.
-- The winner's own row first, as where it is removed: nobody wins who is being buried.
with me as materialized (
    select id, name from rota.replicas where id = $2 for key share
),
seat as materialized (
    select role, term, nonce, replica_id from rota.roles where role = $1 and exists (select from me) for update
),
judged as materialized (
    select s.*, p.id is null or p.id = $2
               or case when p.locked then pg_try_advisory_xact_lock_shared($7, p.id) else false end
               or p.beat_at < clock_timestamp() - $8 * interval '1 second' as vacant
    from seat s left join rota.replicas p on p.id = s.replica_id
),
won as (
    update rota.roles r
    set term = r.term + 1, nonce = $4, replica_id = $2, elector = $5, won_at = clock_timestamp(), released = false,
        ended_at = null, step_down = null, meant_for = null, meant_until = null,
        holder = (select name from me)
    from judged j
    where r.role = j.role and j.nonce <> $4 and ($6 or (j.term = $3 and j.vacant))
    returning r.term
)
select term from won
union all
select term from judged where nonce = $4 and replica_id = $2

-- name: release_role
with released as (
    update rota.roles
    set replica_id = null, nonce = 0, released = true, ended_at = clock_timestamp(), step_down = null, holder = null,
        meant_for = $4, meant_until = case when $4::integer is not null then clock_timestamp() + interval '2 seconds' end
    where role = $1 and term = $2 and nonce = $3
    returning role
)
select pg_notify('rota', 'roles') from released

-- name: ask_step_down
with asked as (
    update rota.roles
    set step_down = term, meant_for = $2,
        meant_until = case when $2::integer is not null then clock_timestamp() + interval '30 seconds' end
    where role = $1 and replica_id is not null
    returning role
)
select pg_notify('rota', 'roles') from asked

-- name: check_fence
-- Shared until the end of the transaction: the next term cannot begin before it. So one that falls silent, because its
-- process is frozen or cut off, must not last: the server ends it.
with held as materialized (
    select 1 from rota.roles where role = $1 and term = $2 and nonce = $3 for share
)
select set_config('idle_in_transaction_session_timeout', '3s', true) from held

-- name: win_role.end_silent
-- Whoever keeps the first in the queue for a role's row waiting, and has said nothing for three seconds. The server would end
-- it by itself, but not where it waits for the second half of a statement that its driver prepares before it runs it. Between
-- two chunks of a COPY it waits in the same way, and somebody may well be there.
select pg_terminate_backend(a.pid)
from pg_locks l
cross join lateral unnest(pg_blocking_pids(l.pid)) as b (pid)
join pg_stat_activity a on a.pid = b.pid
where l.locktype = 'tuple' and l.granted and l.relation = 'rota.roles'::regclass and a.datname = current_database()
    and a.wait_event = 'ClientRead' and a.state_change < clock_timestamp() - interval '3 seconds'
    and not exists (select from pg_stat_progress_copy c where c.pid = a.pid)
    and pg_has_role(a.usesysid, 'USAGE')

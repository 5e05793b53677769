-- name: begin_singleton
with fence as (select 1 from rota.roles where role = $2 and term = $3 and nonce = $4 for share),
clock as materialized (select rota.rota_now() as now)
insert into rota.singletons as s (name, ttl, heartbeat, expect_every, created_at, started_at, beat_at)
select $1, $5, $6, $7, now, now, now from clock where exists (select from fence)
on conflict (name) do update
set ttl = excluded.ttl, heartbeat = excluded.heartbeat, expect_every = excluded.expect_every,
    started_at = excluded.started_at, beat_at = excluded.beat_at,
    state = case when s.expires_at <= excluded.started_at then null else s.state end,
    expires_at = case when s.expires_at <= excluded.started_at then null else s.expires_at end
returning name

-- name: save_state
with fence as (select 1 from rota.roles where role = $2 and term = $3 and nonce = $4 for share),
clock as materialized (select rota.rota_now() as now)
update rota.singletons
set state = $5::json, saved_at = now, expires_at = now + ttl * interval '1 second'
from clock where name = $1 and exists (select from fence)
returning name

-- name: keep_aside
with fence as (select 1 from rota.roles where role = $2 and term = $3 and nonce = $4 for share),
kept as (
    insert into rota.lost_states (name, state, reason)
    select name, state::text, $5 from rota.singletons
    where name = $1 and state is not null and exists (select from fence)
)
select 1 from fence

-- name: beat_singleton
with fence as (select 1 from rota.roles where role = $2 and term = $3 and nonce = $4 for share)
update rota.singletons set beat_at = rota.rota_now() where name = $1 and exists (select from fence) returning name

-- name: note_execution
with fence as (select 1 from rota.roles where role = $2 and term = $3 and nonce = $4 for share)
update rota.singletons
set executed_at = case when $5::text is null then rota.rota_now() else executed_at end,
    run_count = run_count + 1, last_error = $5,
    failure_count = failure_count + case when $5::text is null then 0 else 1 end
where name = $1 and exists (select from fence)
returning name

-- name: list_singletons
select s.name, s.state::text as state, s.saved_at, s.expires_at, s.ttl, s.heartbeat, s.expect_every, s.created_at,
       s.started_at, s.beat_at, s.executed_at, s.run_count, s.failure_count, s.last_error,
       r.replica_id is not null and s.beat_at > rota.rota_now() - 2 * s.heartbeat * interval '1 second'
           and (s.expect_every is null or coalesce(s.executed_at, s.created_at)
                                          > rota.rota_now() - 2 * s.expect_every * interval '1 second') as healthy
from rota.singletons s left join rota.roles r on r.role = 'singleton:' || s.name
where $1::text is null or s.name = $1
order by s.name

-- name: lost_states
select name, state, reason, at from rota.lost_states where name = $1 order by id desc

-- name: reset_singleton
-- The role first, as everywhere.
with deposed as materialized (
    update rota.roles set nonce = 0 where role = 'singleton:' || $1 returning 1
),
kept as (
    insert into rota.lost_states (name, state, reason)
    select name, state::text, 'reset by hand' from rota.singletons
    where name = $1 and state is not null and (select count(*) from deposed) >= 0
    returning name
)
update rota.singletons s set state = null, saved_at = null, expires_at = null
where s.name = $1 and (select count(*) from deposed) >= 0
returning exists (select from kept), pg_notify('rota', 'roles')

-- name: expire_states
update rota.singletons set state = null, expires_at = null
where expires_at <= rota.rota_now()
returning name

-- name: begin_singleton
insert into singletons (name, ttl, heartbeat, expect_every, created_at, started_at, beat_at)
values (?1, ?2, ?3, ?4, ?5, ?5, ?5)
on conflict (name) do update
set ttl = excluded.ttl, heartbeat = excluded.heartbeat, expect_every = excluded.expect_every,
    started_at = excluded.started_at, beat_at = excluded.beat_at,
    state = case when expires_at <= excluded.started_at then null else state end,
    expires_at = case when expires_at <= excluded.started_at then null else expires_at end

-- name: save_state
update singletons
set state = ?2, saved_at = ?3,
    expires_at = case when ttl is not null then strftime('%Y-%m-%d %H:%M:%f000', ?3, ttl || ' seconds') end
where name = ?1

-- name: keep_aside
insert into lost_states (name, state, reason, at)
select name, state, ?2, ?3 from singletons where name = ?1 and state is not null
returning name

-- name: beat_singleton
update singletons set beat_at = ?2 where name = ?1

-- name: note_execution
update singletons
set executed_at = case when ?3 is null then ?2 else executed_at end, run_count = run_count + 1, last_error = ?3, failure_count = failure_count + (?3 is not null)
where name = ?1

-- name: list_singletons
select s.name, s.state, s.saved_at, s.expires_at, s.ttl, s.heartbeat, s.expect_every, s.created_at, s.started_at,
       s.beat_at, s.executed_at, s.run_count, s.failure_count, s.last_error,
       r.replica_id is not null
           and s.beat_at > strftime('%Y-%m-%d %H:%M:%f000', ?2, (-2 * s.heartbeat) || ' seconds')
           and (s.expect_every is null or coalesce(s.executed_at, s.created_at)
                > strftime('%Y-%m-%d %H:%M:%f000', ?2, (-2 * s.expect_every) || ' seconds')) as healthy
from singletons s left join roles r on r.role = 'singleton:' || s.name
where ?1 is null or s.name = ?1
order by s.name

-- name: lost_states
select name, state, reason, at from lost_states where name = ?1 order by id desc

-- name: reset_singleton
update singletons set state = null, saved_at = null, expires_at = null where name = ?1 returning name

-- name: reset_singleton.depose
update roles set nonce = 0 where role = 'singleton:' || ?1

-- name: expire_states
update singletons set state = null, expires_at = null where expires_at <= ?1 returning name

-- name: expire_states.any
select exists (select 1 from singletons where expires_at <= ?1)

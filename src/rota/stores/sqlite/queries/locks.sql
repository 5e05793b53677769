-- name: take_lock.look
select h.token, h.name, h.fence, h.holder, h.replica_id, h.acquired_at, h.expires_at, r.beat_at, r.locked
from lock_holders h left join replicas r on r.id = h.replica_id where h.name = ?1 order by h.fence

-- name: take_lock.remove
delete from lock_holders where token = ?1

-- name: take_lock.fence
insert into locks (name, fence) values (?1, 1) on conflict (name) do update set fence = fence + 1 returning fence

-- name: take_lock
insert into lock_holders (token, name, fence, holder, replica_id, expires_at, acquired_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- name: take_lock.joined
select exists (select 1 from replicas where id = ?1)

-- name: renew_locks
update lock_holders set expires_at = case when replica_id is null then ?2 end
where token in (select value from json_each(?1)) and (replica_id is not null or expires_at > ?3)
returning token

-- name: locks_of
select token from lock_holders where replica_id = ?1

-- name: release_lock
delete from lock_holders where token = ?1 returning replica_id is not null or expires_at > ?2

-- name: list_locks
select h.token, h.name, h.fence, h.holder, h.replica_id, h.acquired_at, h.expires_at, r.beat_at, r.locked
from lock_holders h left join replicas r on r.id = h.replica_id order by h.name, h.fence

-- name: sweep_locks
delete from lock_holders
where expires_at < ?1 or (replica_id is not null and replica_id not in (select id from replicas))
returning 1

-- name: sweep_locks.any
select exists (
    select 1 from lock_holders
    where expires_at < ?1 or (replica_id is not null and replica_id not in (select id from replicas)))

-- name: stand
update replicas set roles = ?2 where id = ?1 and roles <> ?2

-- name: stand.seats
insert into roles (role) select value from json_each(?1) where true on conflict do nothing

-- name: look_roles
-- Life is measured in real time: moving the store's clock must not end a term.
select r.role, r.term, r.nonce, r.replica_id, r.holder, r.elector, r.won_at, r.released, r.ended_at,
       coalesce(r.step_down = r.term, 0), case when r.meant_until > ?1 then r.meant_for end, p.beat_at, p.locked
from roles r left join replicas p on p.id = r.replica_id
order by r.role

-- name: look_roles.candidates
select id, name, roles, started_at, beat_at, locked from replicas where roles <> '[]' order by id

-- name: win_role.seat
select r.term, r.nonce, r.replica_id, p.beat_at, p.locked, me.name
from roles r left join replicas p on p.id = r.replica_id left join replicas me on me.id = ?2
where r.role = ?1

-- name: win_role
update roles
set term = term + 1, nonce = ?3, replica_id = ?2, elector = ?4, won_at = ?5, holder = ?6, released = 0, ended_at = null,
    step_down = null, meant_for = null, meant_until = null
where role = ?1
returning term

-- name: release_role
update roles
set replica_id = null, nonce = 0, released = 1, ended_at = ?5, step_down = null, holder = null, meant_for = ?4,
    meant_until = ?6
where role = ?1 and term = ?2 and nonce = ?3
returning role

-- name: ask_step_down
update roles set step_down = term, meant_for = ?2, meant_until = ?3 where role = ?1 and replica_id is not null
returning role

-- name: check_fence
select 1 from roles where role = ?1 and term = ?2 and nonce = ?3

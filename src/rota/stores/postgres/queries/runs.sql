-- name: enqueue.ids
select nextval('rota.job_runs_id_seq') as id from generate_series(1, $1)

-- name: enqueue.ready
-- Of one job and one priority, to start now: all of them, or none where the job has a limit. Either one, or arrays, of
-- which those that would hold nothing but null come empty. As few steps as can be: for one run, setting them up is most of
-- what the server does. `offset 0` has the clock read once.
with made as (
    insert into rota.job_runs
        (id, job_id, idempotency_key, correlation_id, parent_id, parameters, priority, run_at, created_at)
    select i.id, $1::text, i.key, coalesce(i.correlation_id, i.id::text), i.parent_id, i.parameters::json, $2::integer,
           now, now
    from /* runs */ as i (id, parameters, key, correlation_id, parent_id)
    cross join (select rota.rota_now() as now offset 0) as clock
    /* unless limited */
    returning id, run_at
)
insert into rota.ready (rank, id, job_id, slot, ids)
select rota.rank(run_at, $2), /* first */, $1, false, /* together */ from made /* by the handful */

-- name: enqueue.told
-- The same for one, and the others hear of it.
call rota.enqueue_told($1, $2, $3, $4, $5, $6, $7, null, null)

-- name: enqueue
-- The same for any times, and any job.
with clock as materialized (
    select rota.rota_now() as now,
           coalesce((select concurrency_limit > 0 from rota.jobs where job_id = $1::text), false) as by_job
),
made as (
    insert into rota.job_runs
        (id, job_id, idempotency_key, correlation_id, parent_id, parameters, priority, run_at, created_at)
    select i.id, $1, i.key, coalesce(i.correlation_id, i.id::text), i.parent_id, i.parameters::json, $2::integer,
           coalesce(i.run_at, now + i.delay * interval '1 second', now), now
    from /* runs */ as i (id, parameters, key, correlation_id, parent_id, run_at, delay)
    cross join clock
    /* on conflict */
    returning id, run_at
),
made_delayed as (
    insert into rota.delayed (run_at, id) select run_at, id from made, clock where run_at > now
),
made_wait as (
    insert into rota.waiting (rank, id, job_id, by_config, by_job)
    select rota.rank(run_at, $2), id, $1, false, true from made, clock where run_at <= now and by_job
),
made_ready as (
    insert into rota.ready (rank, id, job_id, slot, ids)
    select rota.rank(run_at, $2), /* first */, $1, false, /* together */
    from made, clock where run_at <= now and not by_job /* by the handful */
)
select count(*) from made

-- name: enqueue.existing
with found as (
    select i.n, i.id as wanted, coalesce(
        (select r.id from rota.job_runs r where r.id = i.id),
        (select r.id from rota.job_runs r
         where r.job_id = i.job_id and r.idempotency_key = i.key and r.config_id is null and r.due_at is null
             and r.idempotency_key is not null)) as id
    from unnest($1::bigint[], $2::text[], $3::text[]) with ordinality as i (id, job_id, key, n)
)
select n, id, id = wanted as created from found where id is not null

-- name: enqueue.given
-- Runs of any jobs and priorities out of one text, and word of them when the transaction commits: one statement with one
-- value, which every driver can say, and which is all or nothing where there is no transaction.
with clock as materialized (select rota.rota_now() as now),
given as materialized (
    select nextval('rota.job_runs_id_seq') as id, i.*,
           coalesce((select concurrency_limit > 0 from rota.jobs j where j.job_id = i.job_id), false) as by_job
    from (select *
          from rows from (json_to_recordset($1::text::json) as (
                   job_id text, parameters text, priority integer, key text, run_at timestamptz, delay float8,
                   correlation_id text, parent_id bigint)) with ordinality
              as r (job_id, parameters, priority, key, run_at, delay, correlation_id, parent_id, n)
          order by n) as i
),
made as (
    insert into rota.job_runs
        (id, job_id, idempotency_key, correlation_id, parent_id, parameters, priority, run_at, created_at)
    select g.id, g.job_id, g.key, coalesce(g.correlation_id, g.id::text), g.parent_id, g.parameters::json, g.priority,
           coalesce(g.run_at, now + g.delay * interval '1 second', now), now
    from given g cross join clock
    -- Two that make the same keys at once wait for each other in one order, whatever theirs is.
    order by g.key, g.n
    on conflict do nothing
    returning id, run_at
),
placed as materialized (
    select m.id, m.run_at, g.job_id, rota.rank(m.run_at, g.priority) as rank,
           case when m.run_at > now then 'delayed' when g.by_job then 'waiting' else 'ready' end as place
    from made m join given g using (id) cross join clock
),
made_delayed as (
    insert into rota.delayed (run_at, id) select run_at, id from placed where place = 'delayed'
),
made_wait as (
    insert into rota.waiting (rank, id, job_id, by_config, by_job)
    select rank, id, job_id, false, true from placed where place = 'waiting'
),
made_ready as (
    insert into rota.ready (rank, id, job_id, slot, ids)
    select rank, min(id), job_id, false, array_agg(id order by id) from placed where place = 'ready'
    group by job_id, rank, rota.handful(id)
),
told as materialized (
    select pg_notify('rota', kind)
    from (select distinct case place when 'ready' then 'ready' else 'schedules' end as kind from placed) as kinds
)
select g.n, g.id, m.id is not null as created, (select count(*) from told)
from given g left join made m using (id)
order by g.n

-- name: enqueue.given_existing
-- A statement of its own: only a later snapshot sees the run of somebody who committed meanwhile.
select i.n, r.id
from json_to_recordset($1::text::json) as i (n bigint, job_id text, key text)
join rota.job_runs r on r.job_id = i.job_id and r.idempotency_key = i.key and r.config_id is null and r.due_at is null
    and r.idempotency_key is not null

-- name: claim_runs
-- Of the rows that were found, as many as hold what is wanted; of the last one, a part. What is taken is what was deleted, or
-- cut off: one that somebody else changed in this very moment is neither. The last line is no run: how many rows were
-- found, how many runs were in them, and whether others have hold of some, which they may leave.
with clock as materialized (select rota.rota_now() as now),
found as materialized (
    /* candidates */
),
counted as materialized (
    select place, slot, ids, upto, ($3 - upto)::integer + cardinality(ids) as part
    from (select place, slot, ids, sum(cardinality(ids)) over (order by rank, id) as upto from found) as f
),
whole as (
    delete from rota.ready where ctid = any(array(select place from counted where upto <= $3)) returning slot, ids
),
parted as (
    update rota.ready r set id = c.ids[c.part + 1], ids = c.ids[c.part + 1:]
    from counted c where r.ctid = c.place and c.upto > $3 and c.part > 0
    returning c.slot, c.ids[:c.part] as ids
),
-- As one array: looked up in the order of the index, which is half the work of one after the other.
taken as materialized (
    select array_agg(id) as ids, array_agg(id) filter (where slot) as slots
    from (select slot, unnest(ids) as id from whole union all select slot, unnest(ids) from parted) as t
),
claimed as (
    update rota.job_runs r
    set state = 'running', lock_token = $1, replica_id = $2, attempt = r.attempt + 1, started_at = clock.now,
        error = null, progress = null
    from taken, clock
    where r.id = any(taken.ids) and r.state = 'queued'
    returning r.id, r.job_id, r.attempt, r.losses, r.parameters, r.idempotency_key,
        rota.microseconds(coalesce(r.due_at, r.created_at)) as due, r.config_id, r.correlation_id,
        rota.rank(r.run_at, r.priority) as rank
),
batch as (
    insert into rota.claims (token, replica_id, ids) select $1, $2, array_agg(id) from claimed having count(*) > 0
),
held as (
    update rota.scheduler_locks l
    set replica_id = $2, expires_at = clock.now + l.timeout_seconds * interval '1 second'
    from clock
    where l.lock_token = any((select slots from taken)::bigint[])
)
select id, job_id, attempt, losses, parameters, idempotency_key, due, config_id, correlation_id,
       case when (select slots from taken) is null then false else id in (select unnest(slots) from taken) end as slot, rank
from claimed
union all
select null, null, (select count(*)::integer from found), (select coalesce(max(upto), 0)::integer from counted),
       null, null, null, null, null,
       (select count(*) from found) < $5 and exists (
           select from (values /* names */) as j (job_id)
           cross join lateral (
               select from rota.ready r
               where r.job_id = j.job_id and r.rank >= $4 and r.ctid not in (select place from found)
               order by r.rank limit 1) as others),
       null

-- name: claim_runs.one
select * from rota.claim_one($1, $2, $3, $4)

-- name: claim_runs.candidates
select ctid as place, rank, id, slot, ids from rota.ready
    where job_id = $6 and rank >= $4 order by rank, id limit $5 for update skip locked

-- name: claim_runs.merged
-- Each job's best, merged as they are read: no more is looked at than is locked.
select r.*
    from (select * from (/* jobs */) as each_job order by rank, id) as best
    cross join lateral (
        select ctid as place, rank, id, slot, ids from rota.ready where ctid = best.place for update skip locked) as r
    limit $5

-- name: claim_runs.job
(select ctid as place, rank, id from rota.ready where job_id = $6 and rank >= $4 order by rank, id)

-- name: claim_runs.fronts
select job_id from unnest($1::text[]) as j (job_id)
cross join lateral (select rank from rota.ready r where r.job_id = j.job_id order by rank limit 1) as front
order by rank limit $2

-- name: claim_runs.void
-- The answer to a claim was lost, and the server may still be at it: whoever has the token first, has it. If it is this
-- row, that claim fails as a whole and leaves what it wanted where it was.
insert into rota.claims (token, replica_id, ids) values ($1, $2, '{}') on conflict do nothing returning token

-- name: claim_runs.again
select r.id, r.job_id, r.attempt, r.losses, r.parameters, r.idempotency_key,
       rota.microseconds(coalesce(r.due_at, r.created_at)), r.config_id, r.correlation_id,
       exists (select from rota.scheduler_locks l where l.lock_token = r.id) as slot,
       rota.rank(r.run_at, r.priority) as rank
from rota.claims c join rota.job_runs r on r.id = any(c.ids) and r.lock_token = c.token and r.state = 'running'
where c.token = $1

-- name: finish_runs.plain
-- Successes that leave nothing but the fact. The case keeps the pairs a look-up in a hash, and not a join that would look
-- for each run by itself. Numbers come as one text: an array takes the driver longer than all else takes us.
with clock as materialized (select rota.rota_now() as now),
given as materialized (
    select $1::text::bigint[] as ids, $2::text::bigint[] as tokens, $3::text::bigint[] as slots
),
done as (
    update rota.job_runs r set state = 'succeeded', finished_at = clock.now
    from clock
    where r.id = any((select ids from given)::bigint[]) and r.state = 'running'
        and case when (r.id, r.lock_token) in (select i.* from given, unnest(ids, tokens) as i) then true else false end
    returning r.id
),
used_up as (
    delete from rota.claims where token = any($4::bigint[])
),
answered as (
    delete from rota.cancellations c using done
    where c.run_id = done.id and (select exists (select from rota.cancellations))
),
freed as (
    delete from rota.scheduler_locks l
    where l.lock_token = any((select slots from given)::bigint[])
        and case when l.lock_token in (select id from done) then true else false end
    returning l.config_id, l.job_id
)
select case when (select count(*) from done) < (select cardinality(ids) from given) then array(select id from done) end as accepted,
       -- As values, and not as joins, which might read everything that waits.
       (select exists (select from rota.waiting)) and exists (select from freed f where
           (select w.id from rota.waiting w where w.by_config and w.config_id = f.config_id limit 1) is not null
           or (select w.id from rota.waiting w where w.by_job and w.job_id = f.job_id limit 1) is not null) as freed

-- name: finish_runs
with clock as materialized (select rota.rota_now() as now),
input as (
    -- One that somebody wants to stop is not tried again.
    select i.id, i.token, i.result, i.error, i.delay, i.released, i.slot,
           (case when i.state = 'queued' and exists (select from rota.cancellations c where c.run_id = i.id)
                 then 'cancelled' else i.state end)::rota.run_state as state
    from unnest($1::text::bigint[], $2::text::bigint[], $3::text::text[], $4::text::text[], $5::text::text[],
                $6::text::float8[], $7::text::boolean[], $8::text::boolean[])
        as i (id, token, state, result, error, delay, released, slot)
),
done as (
    update rota.job_runs r
    set state = i.state, result = i.result::json, error = i.error,
        finished_at = case when i.state = 'queued' then null else clock.now end,
        run_at = case when i.state = 'queued' then clock.now + i.delay * interval '1 second' else r.run_at end,
        attempt = r.attempt - i.released::integer
    from input i, clock
    where r.id = i.id and r.lock_token = i.token and r.state = 'running'
    returning r.id, r.job_id, r.config_id, r.state, r.run_at, r.error, r.started_at, i.slot, i.released
),
again as (
    insert into rota.delayed (run_at, id) select run_at, id from done where state = 'queued'
    on conflict do nothing
),
freed as (
    delete from rota.scheduler_locks l using done where done.slot and l.lock_token = done.id
    returning l.config_id, l.job_id
),
used_up as (
    delete from rota.claims where token = any($9::bigint[])
),
answered as (
    delete from rota.cancellations c using done
    where c.run_id = done.id and (select exists (select from rota.cancellations))
),
counted as (
    insert into rota.schedule_failures as f (config_id, failure_count, last_error)
    select config_id, count(*) filter (where state = 'failed'),
           (array_agg(error order by started_at desc) filter (where error is not null))[1]
    from done where config_id is not null and not released and (state = 'failed' or error is not null)
    group by config_id order by config_id
    on conflict (config_id) do update
        set failure_count = f.failure_count + excluded.failure_count,
            last_error = coalesce(excluded.last_error, f.last_error)
),
tally as (
    select d.job_id, count(*) filter (where d.error is not null and d.state in ('failed', 'queued')) as failures,
           coalesce(bool_or(d.state = 'succeeded'), false) as worked
    from done d where $10 and not d.released group by d.job_id
),
judged as (
    select j.job_id
    from rota.jobs j join tally t using (job_id)
    where j.breaker_failures is not null and (t.failures > 0 or j.consecutive_failures > 0 or j.breaker <> 'closed')
    order by j.job_id for update of j
),
tripped as (
    update rota.jobs j
    set consecutive_failures = case when t.worked then 0 else j.consecutive_failures + t.failures end,
        breaker = case when t.worked then 'closed'
                       when j.breaker = 'half_open' or j.consecutive_failures + t.failures >= j.breaker_failures then 'open'
                       else j.breaker end,
        breaker_changed_at = case
            when t.worked or j.breaker = 'half_open'
                or (j.breaker = 'closed' and j.consecutive_failures + t.failures >= j.breaker_failures) then clock.now
            else j.breaker_changed_at end
    from tally t, judged, clock
    where j.job_id = t.job_id and judged.job_id = j.job_id
)
select array(select id from done) as accepted,
       -- As values, and not as joins, which might read everything that waits.
       (select exists (select from rota.waiting)) and exists (select from freed f where
           (select w.id from rota.waiting w where w.by_config and w.config_id = f.config_id limit 1) is not null
           or (select w.id from rota.waiting w where w.by_job and w.job_id = f.job_id limit 1) is not null) as freed

-- name: finish_runs.already
-- Outcomes that an earlier call recorded, whose reply was lost.
select r.id from rota.job_runs r join unnest($1::bigint[], $2::bigint[]) as i (id, token) using (id)
where r.lock_token = i.token and r.state <> 'running'

-- name: report_progress
update rota.job_runs r set progress = i.progress::json
from unnest($1::bigint[], $2::bigint[], $3::text[]) as i (id, token, progress)
where r.id = i.id and r.lock_token = i.token and r.state = 'running'

-- name: get_runs
select id, job_id, config_id, idempotency_key, correlation_id, parent_id, parameters, priority, state::text as state,
       reason, attempt, losses, run_at, due_at, missed_from, missed_to, missed_count, replica_id, created_at,
       started_at, finished_at, progress, result, error
from rota.job_runs where id = any($1::bigint[]) order by id

-- name: find_runs
select id, job_id, config_id, idempotency_key, correlation_id, parent_id, parameters, priority, state::text as state,
       reason, attempt, losses, run_at, due_at, missed_from, missed_to, missed_count, replica_id, created_at,
       started_at, finished_at, progress, result, error
from rota.job_runs
where ($1::text is null or job_id = $1)
    and ($2::integer is null or config_id = $2)
    and ($3::text[] is null or state::text = any($3))
    -- The index has the runs that follow another; the one they follow is found by its id.
    and ($4::text is null or (correlation_id = $4 and (correlation_id <> id::text or id = $8::bigint)))
    and ($5::text is null or idempotency_key like $5)
    and ($6::timestamptz is null or created_at >= $6)
    and ($9::bigint is null or id > $9)
    and ($10::timestamptz is null or created_at >= $10 or started_at >= $10 or finished_at >= $10)
order by id desc limit $7

-- name: find_runs.longest
started_at is not null order by coalesce(finished_at, rota.rota_now()) - started_at desc, id desc limit

-- name: running_runs
select id, job_id, config_id, idempotency_key, correlation_id, parent_id, parameters, priority, state::text as state,
       reason, attempt, losses, run_at, due_at, missed_from, missed_to, missed_count, replica_id, created_at,
       started_at, finished_at, progress, result, error
from rota.job_runs where id = any(array(select unnest(ids) from rota.claims)) and state = 'running' order by id

-- name: cancel_run
with found as (
    select id, job_id, state, replica_id, run_at, priority from rota.job_runs where id = $1 for update
),
stopped as (
    update rota.job_runs r set state = 'cancelled', finished_at = rota.rota_now()
    from found where r.id = found.id and found.state = 'queued'
    returning r.id
),
asked as (
    insert into rota.cancellations (run_id, replica_id)
    select id, replica_id from found where state = 'running'
    on conflict (run_id) do update set replica_id = excluded.replica_id
)
select case when exists (select from stopped) then 'cancelled' else state::text end as state,
       job_id, rota.rank(run_at, priority) as rank, run_at
from found

-- name: cancel_run.unpark
-- A statement of its own: only a snapshot taken after the row lock sees a slot that was just given. What somebody has locked
-- is being claimed or moved: they will see the state and drop it. Or it stays in what is left of a handful; then whoever
-- claims it drops it, and whoever would like to have it run again takes it out first.
with found as materialized (
    select ctid as place, array_remove(ids, $1) as others from rota.ready
    where job_id = $4 and rank = $2 and id >= rota.handful($1) and id <= $1 and $1 = any(ids) for update skip locked
),
ready as (
    delete from rota.ready where ctid = any(array(select place from found where others = '{}'))
),
fewer as (
    update rota.ready r set id = others[1], ids = others from found where r.ctid = place and others <> '{}'
),
delayed as (
    delete from rota.delayed where ctid = any(array(
        select ctid from rota.delayed where run_at = $3 and id = $1 for update skip locked))
),
freed as (
    delete from rota.scheduler_locks where lock_token = $1
)
delete from rota.waiting where ctid = any(array(select ctid from rota.waiting where id = $1 for update skip locked))

-- name: retry_run.which
select config_id, job_id, rota.rank(run_at, priority) as rank from rota.job_runs where id = $1

-- name: retry_run.fewer
-- Waits for whoever has hold of it, and looks again at what they left; so does the next one, when it is the last.
update rota.ready set id = (array_remove(ids, $1))[1], ids = array_remove(ids, $1)
where job_id = $2 and rank = $3 and id >= rota.handful($1) and id <= $1 and $1 = any(ids) and cardinality(ids) > 1

-- name: retry_run.none
delete from rota.ready where job_id = $2 and rank = $3 and id = $1 and cardinality(ids) = 1

-- name: retry_run
with clock as materialized (select rota.rota_now() as now),
found as (
    select id, config_id, state, missed_count from rota.job_runs where id = $1 for update
),
again as (
    update rota.job_runs r
    set state = 'queued', attempt = 0, losses = 0, run_at = now, reason = null, error = null, result = null,
        finished_at = null
    from found, clock
    where r.id = found.id and found.state in ('failed', 'cancelled', 'skipped') and found.missed_count is null
    returning r.id, r.run_at
),
parked as (
    insert into rota.delayed (run_at, id) select run_at, id from again
),
answered as (
    delete from rota.cancellations c using again where c.run_id = again.id
),
-- It has not failed in the end.
forgiven as (
    update rota.schedule_failures f set failure_count = greatest(f.failure_count - 1, 0)
    from found, again where f.config_id = found.config_id and found.state = 'failed'
)
select state::text as state, missed_count, exists (select from again) as again from found

-- name: prune
-- Looks no further than the first run that is too young: what it costs is what there is to delete.
with horizon as materialized (select rota.rota_now() - $1 * interval '1 day' as at),
old as (
    select r.id from rota.job_runs r
    where r.id < coalesce((select young.id from rota.job_runs young where young.created_at >= (select at from horizon)
                           order by young.id limit 1), 9223372036854775807)
        and r.finished_at < (select at from horizon)
        and (r.config_id is null or r.idempotency_key is null
             or exists (select from rota.job_runs newer
                        where newer.config_id = r.config_id and newer.idempotency_key > r.idempotency_key))
        -- As a value, and not as a join, which might read all schedules there are.
        and (select c.last_run_id from rota.scheduler_configs c where c.id = r.config_id) is distinct from r.id
    order by r.id limit $2
),
gone as (
    delete from rota.job_runs r using old where r.id = old.id and r.finished_at is not null returning r.id
)
select count(*) from gone

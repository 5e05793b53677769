// pg-boss: woken by NOTIFY, two loops of large batches that go on while they come back full. Its schedules go by the
// minute, so there are no ticks.

import { load, main, url } from "./driver.mjs";

const { PgBoss } = await load("pg-boss");
const BATCH = 1000;

async function start(options) {
  const boss = new PgBoss({ connectionString: url, ...options });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  return boss;
}

main({
  left: "select 1 from pgboss.job where name = 'noop' and state < 'completed' limit 1",

  async setup() {
    const boss = await start({});
    await boss.createQueue("noop", { notify: true });
    await boss.stop();
  },

  async client() {
    const boss = await start({ max: 1, supervise: false, schedule: false });
    return {
      one: (number) => boss.send("noop", { number }),
      many: (numbers) => boss.insert("noop", numbers.map((number) => ({ data: { number } }))),
      close: () => boss.stop({ graceful: false }),
    };
  },

  async work(started) {
    const boss = await start({ useListenNotify: true });
    await boss.work("noop", { batchSize: BATCH, localConcurrency: 2, burstWhenBatchFull: true }, async (jobs) => {
      for (const job of jobs) started(job.data.number);
    });
  },
});

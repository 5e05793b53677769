// graphile-worker: the settings of its own performance page; its schedules go by the minute, so there are no ticks.

import { load, main, url } from "./driver.mjs";

const { Logger, makeWorkerUtils, run } = await load("graphile-worker");
const logger = new Logger(() => () => {});

const job = (number) => ({ identifier: "noop", payload: { number } });

main({
  left: "select 1 from graphile_worker._private_jobs limit 1",

  async setup() {
    const utils = await makeWorkerUtils({ connectionString: url, logger });
    await utils.migrate();
    await utils.release();
  },

  async client() {
    const utils = await makeWorkerUtils({ connectionString: url, maxPoolSize: 1, logger });
    return {
      one: (number) => utils.addJob("noop", { number }),
      many: (numbers) => utils.addJobs(numbers.map(job)),
      close: () => utils.release(),
    };
  },

  async work(started) {
    const preset = {
      worker: {
        connectionString: url,
        concurrentJobs: 24,
        maxPoolSize: 25,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    };
    const runner = await run({
      preset,
      logger,
      noHandleSignals: true,
      taskList: { noop: async ({ number }) => void started(number) },
    });
    await runner.promise;
  },
});

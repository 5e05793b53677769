// Driver: driver.py for Node; that file says what is asked and answered.
// A peer is {left, slow, bulk, ticks, setup(), client() -> {one, many, close}, work(started)}.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const BATCH = 1000;

export const url = process.env.PEER_URL;

// Packages are where this process was started, not beside this file.
export const load = (name) => import(pathToFileURL(createRequire(`${process.cwd()}/`).resolve(name)).href);

const now = () => (performance.timeOrigin + performance.now()) / 1000;

const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);

async function timed(client, action) {
  const began = performance.now();
  await action(client);
  const seconds = (performance.now() - began) / 1000;
  await client.close();
  return seconds;
}

async function enqueueOne(peer, count) {
  const client = await peer.client();
  await client.one(0);
  say(
    await timed(client, async () => {
      for (let number = 1; number <= count; number++) await client.one(number);
    }),
  );
}

async function enqueueMany(peer, count) {
  const batches = [];
  for (let first = 0; first < count; first += BATCH) {
    batches.push(Array.from({ length: Math.min(BATCH, count - first) }, (_, index) => first + index));
  }
  say(
    await timed(await peer.client(), async (client) => {
      for (const numbers of batches) await client.many(numbers);
    }),
  );
}

async function pickup(peer, count) {
  const client = await peer.client();
  const sent = [];
  for (let number = 0; number < count; number++) {
    await sleep(50 + Math.random() * 100);
    await client.one(number);
    sent.push([number, now()]);
  }
  await client.close();
  say(sent);
}

async function work(peer) {
  const starts = [];
  const lines = createInterface({ input: process.stdin });
  lines.on("line", (line) => say(line === "starts" ? starts : [starts.length, starts.length ? starts[0][0] : null]));
  lines.on("close", () => process.exit(0));
  say("ready");
  await peer.work((number) => starts.push([now(), number]));
}

export async function main(peer) {
  const [command, count] = process.argv.slice(2);
  const { left, slow = false, bulk = true, ticks = false } = peer;
  const commands = {
    setup: async () => {
      await peer.setup();
      say({ left, slow, bulk, ticks });
    },
    "enqueue-one": () => enqueueOne(peer, Number(count)),
    "enqueue-many": () => enqueueMany(peer, Number(count)),
    pickup: () => pickup(peer, Number(count)),
    work: () => work(peer),
  };
  await commands[command]();
}

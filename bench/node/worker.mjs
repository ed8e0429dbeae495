// One peer in a process of its own: says `ready`, obeys a command a line, answers with a line of JSON, as the workers in other languages
// do (crates/fencepost-measure/src/serve.rs): worker.mjs PEER URL, with the packages in $NODE_PACKAGES.
//
// cycle WORKERS SECONDS · contend NAME CONTENDERS HOLD SECONDS FILE · hold COUNT SECONDS
import { appendFileSync, readFileSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const require = createRequire(`${process.env.NODE_PACKAGES}/worker.js`);
const Redis = require('ioredis');
const TTL = 30000;
const FOREVER = 1e9;
const [peer, url] = process.argv.slice(2);

const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const moment = () => Number(process.hrtime.bigint());
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const tell = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);

function connect(address) {
  const client = new Redis(`redis://${address}`);
  // A node that is gone is what some measures are about.
  client.on('error', () => {});
  return client;
}

const addresses = url.replace(/^\w+:\/\//, '').split('?')[0].split(',');
const clients = addresses.map(connect);

// Defaults are kept, but waiting has no end.
function locks(ttl) {
  if (peer === 'redlock 4') {
    const Redlock = require('redlock');
    const redlock = new Redlock(clients, { retryCount: -1 });
    redlock.on('clientError', () => {});
    return { acquire: (name) => redlock.lock(name, ttl), release: (lock) => lock.unlock() };
  }
  if (peer === 'redlock 5 beta') {
    const Redlock = require('redlock5').default;
    const redlock = new Redlock(clients, { retryCount: -1 });
    redlock.on('error', () => {});
    return { acquire: (name) => redlock.acquire([name], ttl), release: (lock) => lock.release() };
  }
  const { Mutex, RedlockMutex } = require('redis-semaphore');
  // A lock that is lost is counted; by default it would end the process.
  const options = { lockTimeout: ttl, acquireTimeout: FOREVER, onLockLost: () => {} };
  const make = {
    'redis-semaphore': (name) => new Mutex(clients[0], name, options),
    'redis-semaphore x5': (name) => new RedlockMutex(clients, name, options),
  }[peer];
  if (!make) throw new Error(`no peer \`${peer}\``);
  const acquire = async (name) => {
    const mutex = make(name);
    await mutex.acquire();
    return mutex;
  };
  return { acquire, release: (mutex) => mutex.release() };
}

const { acquire, release } = locks(TTL);

async function cycle(workers, lasts) {
  const times = [];
  const name = (number) => `${peer}:${process.pid}:${number}`;
  for (let number = 0; number < workers; number++) await release(await acquire(name(number)));
  const started = seconds();
  const work = async (number) => {
    for (let before = seconds(); before < started + lasts; before = seconds()) {
      await release(await acquire(name(number)));
      times.push(seconds() - before);
    }
  };
  await Promise.all(Array.from({ length: workers }, (_, number) => work(number)));
  const took = seconds() - started;
  times.sort((one, other) => one - other);
  const percentile = (percent) => times[Math.min(Math.floor((times.length * percent) / 100), times.length - 1)] * 1e6;
  return { p50_us: percentile(50), p99_us: percentile(99), max_us: percentile(100), per_s: times.length / took };
}

// Who has released the lock stays away until another one has had it, if there is a file: each turn leaves a byte there.
async function contend(name, contenders, hold, lasts, file) {
  const polite = file !== '-';
  const size = () => statSync(file).size;
  const end = seconds() + lasts;
  const work = async () => {
    const turns = [];
    while (seconds() < end) {
      const asked = moment();
      const held = await acquire(name);
      const acquired = moment();
      if (polite) appendFileSync(file, '.');
      const mine = polite ? size() : 0;
      // By chance where waiters may poll: one length would meet the same point of their period each time.
      if (hold > 0) await sleep(hold * 1000 * (polite ? Math.random() : 1));
      const released = moment();
      await release(held);
      turns.push([0, asked, acquired, released]);
      while (polite && size() === mine && seconds() < end) await sleep(1);
    }
    return turns;
  };
  return { turns: await Promise.all(Array.from({ length: contenders }, work)) };
}

function usage() {
  const status = readFileSync('/proc/self/status', 'utf8');
  const field = (name) => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(status)[1]);
  return { bytes: field('VmRSS') * 1024, threads: field('Threads') };
}

// Holds many locks with a ttl of 5 s by the library's own renewal.
async function hold(count, lasts) {
  if (peer !== 'redis-semaphore') throw new Error('it renews nothing by itself');
  const before = usage().bytes;
  const started = seconds();
  const keeper = locks(5000);
  const kept = await Promise.all(Array.from({ length: count }, (_, number) => keeper.acquire(`hold:${number}`)));
  const took = seconds() - started;
  await sleep(5000); // all in their stride before it is measured
  tell({ acquired_in_s: took });
  const spent = process.cpuUsage();
  await sleep(lasts * 1000);
  const { user, system } = process.cpuUsage(spent);
  const { bytes, threads } = usage();
  const lost = kept.filter((mutex) => !mutex.isAcquired).length;
  return { lost, bytes_each: (bytes - before) / count, core: (user + system) / 1e6 / lasts, threads };
}

const commands = { cycle, contend, hold };
await release(await acquire(`warm:${process.pid}`));
process.stdout.write('ready\n');
for await (const line of createInterface({ input: process.stdin })) {
  const [what, ...words] = line.split(' ');
  const values = words.map((word) => (Number.isNaN(Number(word)) ? word : Number(word)));
  try {
    tell(await commands[what](...values));
  } catch (error) {
    tell({ error: `${error.name}: ${error.message}`.slice(0, 200) });
  }
}
process.exit(0);

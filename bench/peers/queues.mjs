// One end of a queue, for the benchmark: `node queues.mjs <bullmq|groupmq|rabbitmq> <produce|consume> <port> <concurrency>`.
//
// Prints `ready`, then reads lines of JSON and answers each with one: the producer `{count, batch}` once that
// many messages are accepted, the consumer `{count}` once that many have been handled, with the number of
// those that were out of order for their object. Runs in a folder with the packages installed.

import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'

const [kind, role, port, concurrency] = process.argv.slice(2)
const load = createRequire(process.cwd() + '/')
const OBJECTS = 4000
const IN_FLIGHT = 64
const BATCHES_IN_FLIGHT = 16

// As many bytes of JSON as an event of the bus carries.
function message(number) {
  const data = { object: Math.floor(Math.random() * OBJECTS), number, text: '' }
  data.text = 'x'.repeat(200 - JSON.stringify(data).length)
  return data
}

const last = new Map()
let handled = 0
let behind = 0
let wanted = Infinity
let done = () => {}

function handle(data) {
  if ((last.get(data.object) ?? -1) >= data.number) behind += 1
  last.set(data.object, data.number)
  handled += 1
  if (handled >= wanted) done()
}

const kinds = {
  async bullmq() {
    const { Queue, Worker } = load('bullmq')
    const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null }
    const options = { removeOnComplete: true, removeOnFail: true }
    if (role === 'consume') {
      const worker = new Worker('bench', async (job) => handle(job.data), { connection, concurrency: Number(concurrency), ...options })
      worker.on('error', fail)
      await worker.waitUntilReady()
      return {}
    }
    const queue = new Queue('bench', { connection, defaultJobOptions: options })
    await queue.waitUntilReady()
    return {
      one: (data) => queue.add('event', data),
      many: (all) => queue.addBulk(all.map((data) => ({ name: 'event', data }))),
    }
  },

  async groupmq() {
    const { Queue, Worker } = load('groupmq')
    const Redis = load('ioredis')
    const redis = new Redis(Number(port), '127.0.0.1', { maxRetriesPerRequest: null })
    const queue = new Queue({ redis, namespace: 'bench', keepCompleted: 0, keepFailed: 0 })
    if (role === 'consume') {
      const worker = new Worker({ queue, concurrency: Number(concurrency), handler: async (job) => handle(job.data) })
      worker.on?.('error', fail)
      worker.run()
      return {}
    }
    const one = (data) => queue.add({ groupId: String(data.object), data })
    return { one, many: (all) => Promise.all(all.map(one)) }
  },

  async rabbitmq() {
    const amqp = load('amqplib')
    const connection = await amqp.connect(`amqp://guest:guest@127.0.0.1:${port}`)
    connection.on('error', fail)
    const channel = await connection.createConfirmChannel()
    await channel.assertQueue('bench', { durable: true })
    if (role === 'consume') {
      await channel.prefetch(Number(concurrency))
      await channel.consume('bench', (sent) => {
        handle(JSON.parse(sent.content))
        channel.ack(sent)
      })
      return {}
    }
    const one = (data) => new Promise((resolve, reject) => {
      const content = Buffer.from(JSON.stringify(data))
      channel.sendToQueue('bench', content, { persistent: true }, (error) => (error ? reject(error) : resolve()))
    })
    return { one, many: (all) => Promise.all(all.map(one)) }
  },
}

function fail(error) {
  console.error(error)
  process.exit(1)
}

let produced = 0

async function produce(end, { count, batch }) {
  let left = count
  const one = async () => {
    while (left > 0) {
      const size = Math.min(batch, left)
      left -= size
      const all = Array.from({ length: size }, () => message(produced++))
      await (batch === 1 ? end.one(all[0]) : end.many(all))
    }
  }
  await Promise.all(Array.from({ length: batch === 1 ? IN_FLIGHT : BATCHES_IN_FLIGHT }, one))
  return {}
}

function consume({ count }) {
  return new Promise((resolve) => {
    done = () => {
      handled -= wanted
      wanted = Infinity
      resolve({ behind })
    }
    wanted = count
    if (handled >= wanted) done()
  })
}

process.on('unhandledRejection', fail)
const end = await kinds[kind]().catch(fail)
console.log('ready')
for await (const line of createInterface({ input: process.stdin })) {
  const answer = role === 'produce' ? await produce(end, JSON.parse(line)) : await consume(JSON.parse(line))
  console.log(JSON.stringify(answer))
}
process.exit(0)

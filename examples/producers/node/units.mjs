/**
 * Sends and reads units of work with kafkajs.
 *
 *   node units.mjs send BOOTSTRAP DESTINATION ID ITEM...    a unit, in one transaction
 *   node units.mjs read BOOTSTRAP DESTINATION GROUP COUNT   so many units, a line of JSON each
 */
import kafkajs from "kafkajs";
import { components, unit } from "./wire.mjs";

const { Kafka, Partitioners, logLevel } = kafkajs;

function client(bootstrap) {
  return new Kafka({ clientId: "example-node", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
}

async function send(bootstrap, destination, id, ...items) {
  const producer = client(bootstrap).producer({
    // stable: a successor of that name ends at once what this one leaves open
    transactionalId: "example-node-producer",
    idempotent: true,
    maxInFlightRequests: 1,
    createPartitioner: Partitioners.DefaultPartitioner, // murmur2, as Java's
  });
  await producer.connect();
  try {
    const transaction = await producer.transaction();
    try {
      const messages = components(destination, id, items).map(({ key, value, headers }) => ({
        key, // written as its UTF-8 bytes
        value,
        headers: Object.fromEntries(headers),
      }));
      const sent = await transaction.send({ topic: `${destination}.components`, acks: -1, messages });
      await transaction.commit();
      console.log(JSON.stringify({ id, partitions: messages.map(() => sent[0].partition) }));
    } catch (error) {
      await transaction.abort();
      throw error;
    }
  } finally {
    await producer.disconnect();
  }
}

async function read(bootstrap, destination, group, count) {
  const consumer = client(bootstrap).consumer({ groupId: group, readUncommitted: false });
  await consumer.connect();
  await consumer.subscribe({ topic: `${destination}.units`, fromBeginning: true });
  let left = Number(count);
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    const eachMessage = async ({ topic, partition, message }) => {
      if (left === 0) return;
      if (isUnit(message.headers)) {
        // plain records pass through the same topic
        console.log(JSON.stringify(unit(message.value)));
        left -= 1;
      }
      // once the unit is dealt with, not before
      await consumer.commitOffsets([{ topic, partition, offset: String(BigInt(message.offset) + 1n) }]);
      if (left === 0) resolve();
    };
    consumer.run({ autoCommit: false, eachMessage }).catch(reject);
  }).finally(() => consumer.disconnect());
}

function isUnit(headers = {}) {
  return headers["uow-kind"]?.toString() === "unit" && headers["uow-seq"] === undefined;
}

const [command, ...rest] = process.argv.slice(2);
if (command === "send" && rest.length > 3) await send(...rest);
else if (command === "read" && rest.length === 4) await read(...rest);
else {
  console.error("usage: units.mjs send BOOTSTRAP DESTINATION ID ITEM... | read BOOTSTRAP DESTINATION GROUP COUNT");
  process.exitCode = 2;
}

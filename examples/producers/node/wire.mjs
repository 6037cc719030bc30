/**
 * The wire format of units of work in plain JavaScript: the records of a unit, the partition of a key, and a unit in Avro.
 * Nothing but Node itself; docs/wire-format.md defines all of it.
 *
 *   node wire.mjs records DESTINATION PARTITIONS ID ITEM...   the components of a unit, a line of JSON each
 *   node wire.mjs partitions PARTITIONS                       a partition for each key on standard input, in hexadecimal
 *   node wire.mjs unit                                        values of D.units on standard input, in hexadecimal, as JSON
 */
import { randomUUID } from "node:crypto";
import { readFileSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** The components of a unit: the same id on all, numbers from 1, the end mark on the last one. */
export function components(destination, id, items) {
  return items.map((item, index) => {
    const headers = [
      ["uow-id", id],
      ["uow-seq", String(index + 1)],
      ["uow-component-id", randomUUID()],
    ];
    if (index === items.length - 1) headers.push(["uow-end", "true"]);
    return { topic: `${destination}.components`, key: id, value: item, headers };
  });
}

/** The partition of a key: murmur2 with the highest bit cleared, modulo the number of partitions. */
export function partitionFor(key, partitions) {
  return (murmur2(key) & 0x7fffffff) % partitions;
}

function murmur2(key) {
  const factor = 0x5bd1e995;
  let h = 0x9747b28c ^ key.length;
  let at = 0;
  for (; at + 4 <= key.length; at += 4) {
    let k = Math.imul(key.readInt32LE(at), factor);
    k ^= k >>> 24;
    h = Math.imul(h, factor) ^ Math.imul(k, factor);
  }
  if (at < key.length) h = Math.imul(h ^ key.readUIntLE(at, key.length - at), factor);
  h = Math.imul(h ^ (h >>> 13), factor);
  return h ^ (h >>> 15);
}

const UNIT_1 = Buffer.from("c30119a0f7875c56f152", "hex");
const OUTCOMES = ["complete", "partial", "expired", "cancelled", "failed"];

/** A unit of shape `envelope` or `reference` in Avro single-object encoding. */
export function unit(value) {
  if (!value.subarray(0, 10).equals(UNIT_1)) {
    throw new Error("not a uow.Unit of version 1 in Avro single-object encoding");
  }
  const avro = new Avro(value.subarray(10));
  const found = { id: avro.string(), unit_id: avro.string() };
  avro.string(); // destination
  avro.number(); // generation
  found.outcome = OUTCOMES[avro.number()];
  avro.number(); // reason
  avro.number(); // opened_at
  avro.number(); // closed_at
  avro.optional(() => avro.number()); // expires_at
  avro.number(); // count
  avro.number(); // bytes
  found.missing = avro.array(() => [avro.number(), avro.number()]);
  found.components = avro.array(() => component(avro));
  return found;
}

/** Number and value of a component; a value that is null, or that stayed at its source (shape `reference`), is null. */
function component(avro) {
  const seq = avro.number();
  avro.boolean(); // end
  avro.optional(() => avro.bytes()); // component_id
  avro.optional(() => avro.bytes()); // key
  const value = avro.optional(() => avro.bytes());
  avro.array(() => [avro.string(), avro.optional(() => avro.bytes())]); // headers
  avro.number(); // timestamp
  avro.string(); // source: topic
  avro.number(); // partition
  avro.number(); // offset
  avro.optional(() => [avro.number(), avro.number()]); // reference
  return [seq, value === null ? null : value.toString("utf8")];
}

/** The few kinds of Avro's binary encoding that a unit is made of. */
class Avro {
  constructor(bytes) {
    this.rest = bytes;
  }

  take(length) {
    if (length > this.rest.length) throw new Error("the value ends in the middle of a unit");
    const taken = this.rest.subarray(0, length);
    this.rest = this.rest.subarray(length);
    return taken;
  }

  /** Numbers above 2^53 lose digits; nothing that is used here is that large. */
  number() {
    let raw = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const [next] = this.take(1);
      raw |= BigInt(next & 0x7f) << shift;
      if (next < 0x80) return Number((raw >> 1n) ^ -(raw & 1n));
    }
  }

  boolean() {
    return this.take(1)[0] !== 0;
  }

  bytes() {
    return this.take(this.number());
  }

  string() {
    return this.bytes().toString("utf8");
  }

  /** Null, or something: a union of two branches. */
  optional(read) {
    return this.number() === 0 ? null : read();
  }

  /** Blocks of items; a negative count has the block's size in bytes behind it. */
  array(read) {
    const items = [];
    for (let count = this.number(); count !== 0; count = this.number()) {
      if (count < 0) this.number();
      for (let left = Math.abs(count); left > 0; left--) items.push(read());
    }
    return items;
  }
}

function lines() {
  return readFileSync(0, "ascii").split("\n").filter(Boolean);
}

function main([command, ...rest]) {
  if (command === "records" && rest.length > 3) {
    const [destination, partitions, id, ...items] = rest;
    const partition = partitionFor(Buffer.from(id), Number(partitions));
    for (const each of components(destination, id, items)) console.log(JSON.stringify({ ...each, partition }));
  } else if (command === "partitions" && rest.length === 1) {
    for (const key of lines()) console.log(partitionFor(Buffer.from(key, "hex"), Number(rest[0])));
  } else if (command === "unit") {
    for (const value of lines()) console.log(JSON.stringify(unit(Buffer.from(value, "hex"))));
  } else {
    console.error("usage: wire.mjs records DESTINATION PARTITIONS ID ITEM... | partitions PARTITIONS | unit");
    process.exitCode = 2;
  }
}

if (realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) main(process.argv.slice(2));

// A client of LakeMQ in TypeScript: produce, fetch, consumer groups. docs/clients.md tells how to build it.
import { text } from "node:stream/consumers";

import { Client } from "./client.js";
import { consume } from "./group.js";
import { type NewRecord, partitionOf, type Record } from "./records.js";

const USAGE = `client ADDRESS produce TOPIC            # lines of standard input: a key, a space, a value
client ADDRESS fetch TOPIC              # everything that is there
client ADDRESS consume TOPIC GROUP N    # N records, as a member of a group`;

async function produce(client: Client, topic: string): Promise<void> {
  const { partitions } = await client.topic(topic);
  const batches = new Map<number, NewRecord[]>();
  for (const line of (await text(process.stdin)).split("\n").filter(Boolean)) {
    const [key, ...words] = line.split(" ");
    const record = { key: Buffer.from(key), value: Buffer.from(words.join(" ")) };
    const partition = partitionOf(record.key, partitions.length);
    batches.set(partition, [...(batches.get(partition) ?? []), record]);
  }
  for (const [partition, records] of batches) {
    console.log(partition, String(await client.produce(topic, partition, records)), records.length);
  }
}

async function fetchAll(client: Client, topic: string): Promise<void> {
  for (const { partition } of (await client.topic(topic)).partitions) {
    for (let next = 0n, behind = -1n; next !== behind; ) {
      behind = next;
      let records: Record[];
      [records, next] = await client.fetch(topic, partition, behind);
      for (const record of records) show(record, partition);
    }
  }
}

function show(record: Record, partition: number): void {
  console.log(`${partition} ${record.offset} ${record.key ?? ""} ${record.value ?? ""}`);
}

async function main(address: string, command: string, topic: string, group: string, count: number) {
  const client = new Client(address);
  try {
    if (command === "produce" && topic) return await produce(client, topic);
    if (command === "fetch" && topic) return await fetchAll(client, topic);
    if (command === "consume" && count > 0) {
      return await consume(client, group, topic, (record, partition) => {
        show(record, partition);
        return --count === 0 ? "stop" : undefined;
      });
    }
    throw new Error(USAGE);
  } finally {
    client.close();
  }
}

const [address, command, topic, group, count] = process.argv.slice(2);
main(address, command, topic, group, Number(count)).catch((failure: unknown) => {
  console.error(failure instanceof Error ? failure.message : failure);
  process.exitCode = 1;
});

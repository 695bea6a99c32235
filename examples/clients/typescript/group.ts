// A member of a consumer group. The rules are those of docs/formats/native.md, "Consumer groups".
import type { MessageInitShape } from "@bufbuild/protobuf";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { type Client, Refused } from "./client.js";
import {
  type GroupAssignment, GroupHeartbeatSchema, type GroupPartition, Intent,
} from "./lakemq/native/v1/native_pb.js";
import type { Record } from "./records.js";

type Heartbeat = MessageInitShape<typeof GroupHeartbeatSchema>;
type Handler = (record: Record, partition: number) => Promise<"stop" | void> | "stop" | void;

/** Hands a topic's records out as one member of a group, and commits what was handled, until the
 *  handler says "stop". The handler must not block the event loop for longer than a session (10 s). */
export async function consume(client: Client, group: string, topic: string, handle: Handler): Promise<void> {
  for (;;) {
    const member = new Member(client, group, topic);
    try {
      return await member.run(handle);
    } catch (failure) {
      const lost = failure instanceof Refused && ["UNKNOWN_MEMBER", "MEMBER_FENCED"].includes(failure.code);
      if (!lost) throw failure;
      // Rule 6: everything is lost, join with a new id.
    } finally {
      await member.leave();
    }
  }
}

class Member {
  readonly #id = randomUUID();
  readonly #place: string; // under which the client keeps the coordinator's address
  readonly #holds = new Map<number, GroupPartition>(); // as they were given
  readonly #next = new Map<number, bigint>(); // offset behind the last record that was handled
  readonly #dirty = new Set<number>(); // partitions with something to commit
  #newest: GroupAssignment | undefined; // none: not joined yet
  #stream: Stream | undefined;
  #listening: Promise<void> | undefined;
  #failed: unknown;
  #left = false;
  #beats = 0n;
  #commits = 0n;
  #lease = 0; // nothing is handed out from then on,
  #claim = 0; // and nothing is claimed on a new stream

  constructor(
    readonly client: Client,
    readonly group: string,
    readonly topic: string,
  ) {
    this.#place = `group ${group}`;
  }

  async run(handle: Handler): Promise<void> {
    this.#listening = this.#listen().catch((failure: unknown) => void (this.#failed = failure));
    for (let idle = true; ; idle = true) {
      if (this.#failed) throw this.#failed;
      await this.#release();
      for (const [partition, held] of this.#holds) {
        const from = this.#next.get(partition)!;
        const [records, next] = await this.client.fetch(this.topic, partition, from);
        idle &&= next === from;
        for (const record of records) {
          if (this.#lost(partition, held) || performance.now() >= this.#lease) break; // it comes again
          const stop = await handle(record, partition);
          this.#next.set(partition, record.offset + 1n);
          this.#dirty.add(partition);
          if (stop) return await this.#commit();
        }
        if (records.length === 0 && !this.#lost(partition, held)) this.#next.set(partition, next);
        await this.#commit();
      }
      if (idle) await sleep(100);
    }
  }

  /** Whether a partition is to be given up, or was another's in between. */
  #lost(partition: number, held: GroupPartition): boolean {
    return this.#given().get(partition)?.epoch !== held.epoch || this.#failed !== undefined;
  }

  #given(): Map<number, GroupPartition> {
    return new Map(this.#newest?.partitions.map((each) => [each.partition, each]));
  }

  /** Gives up what is another's, and takes what is new, between two records (rules 3 and 4). */
  async #release(): Promise<void> {
    const given = this.#given();
    let changed = false;
    for (const [partition, held] of this.#holds) {
      if (given.get(partition)?.epoch === held.epoch) continue;
      this.#holds.delete(partition);
      changed = true;
    }
    for (const [partition, each] of given) {
      if (this.#holds.has(partition)) continue;
      this.#holds.set(partition, each);
      this.#next.set(partition, each.committedOffset > 0n ? each.committedOffset : 0n);
      changed = true;
    }
    if (changed) this.#beat();
  }

  /** What was handled is durable when this returns. */
  async #commit(): Promise<void> {
    const { group, topic } = this;
    const offsets = [...this.#dirty].map((partition) => ({ topic, partition, offset: this.#next.get(partition)! }));
    this.#dirty.clear();
    if (offsets.length === 0) return;
    await this.client.retry(this.#place, (node, options) => {
      const by = { memberId: this.#id, memberEpoch: this.#newest!.memberEpoch, sequence: ++this.#commits };
      return node.commitOffsets({ group, offsets, ...by }, options);
    });
  }

  /** Heartbeats and assignments: on a new stream under the same id, when one breaks (rule 5). */
  async #listen(): Promise<void> {
    while (!this.#left) {
      const stream = (this.#stream = new Stream());
      const sent = new Map<bigint, number>();
      stream.sent = (beat) => sent.set(beat, performance.now());
      this.#lease = 0;
      this.#beat();
      try {
        for await (const answer of this.client.node(this.#place).joinGroup(stream)) {
          if (answer.error && !answer.error.retriable) throw Refused.inPlace(answer.error);
          if (!answer.error) this.#take(answer, sent);
        }
      } catch (failure) {
        const refused = failure instanceof Refused ? failure : Refused.of(failure);
        if (!refused.retriable) throw refused;
        this.client.lead(this.#place, refused.leader);
      } finally {
        stream.end();
      }
      if (!this.#left) await sleep(200);
    }
  }

  #take(answer: GroupAssignment, sent: Map<bigint, number>): void {
    const at = sent.get(answer.sequence);
    if (at !== undefined) { // rule 5, and 5 % for clocks that differ
      const session = Math.min(answer.sessionTimeoutMs, answer.takeoverMs || Infinity);
      this.#lease = this.#claim = at + session * 0.95;
      sent.delete(answer.sequence);
    }
    if (answer.revision >= (this.#newest?.revision ?? 0n)) this.#newest = answer; // rule 2
    this.#stream?.every(answer.heartbeatIntervalMs, () => this.#beat());
  }

  #beat(intent: Intent = this.#newest ? Intent.STAY : Intent.JOIN): void {
    const claims = performance.now() < this.#claim;
    this.#stream?.push({
      group: this.group, memberId: this.#id, sequence: ++this.#beats, intent, topics: [this.topic],
      revision: this.#newest?.revision ?? 0n,
      holds: [...this.#holds.values()].map(({ topic, partition, epoch }) => ({
        topic, partition, epoch: claims ? epoch : 0n,
      })),
    });
  }

  /** Frees the partitions at once; without it the coordinator waits for the end of the session. */
  async leave(): Promise<void> {
    this.#left = true;
    this.#holds.clear();
    this.#beat(Intent.LEAVE);
    this.#stream?.end();
    await Promise.race([this.#listening, sleep(2000, undefined, { ref: false })]);
  }
}

/** Heartbeats of one stream, in order, as they are pushed. */
class Stream implements AsyncIterable<Heartbeat> {
  sent: (beat: bigint) => void = () => {};
  readonly #beats: Heartbeat[] = [];
  #wake: () => void = () => {};
  #timer: NodeJS.Timeout | undefined;
  #ended = false;

  push(beat: Heartbeat): void {
    this.#beats.push(beat);
    this.#wake();
  }

  end(): void {
    clearInterval(this.#timer);
    this.#ended = true;
    this.#wake();
  }

  every(ms: number, beat: () => void): void {
    if (ms > 0) this.#timer ??= setInterval(beat, ms);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Heartbeat> {
    for (;;) {
      for (let beat = this.#beats.shift(); beat; beat = this.#beats.shift()) {
        this.sent(beat.sequence!);
        yield beat;
      }
      if (this.#ended) return;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}

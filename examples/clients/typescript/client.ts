import { create } from "@bufbuild/protobuf";
import { type CallOptions, type Client as Stub, Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { setTimeout as sleep } from "node:timers/promises";

import {
  Acks, type Error as BrokerError, type InitProducerResponse, Native, ProduceRequestSchema, type Topic,
} from "./lakemq/native/v1/native_pb.js";
import { decode, encode, type NewRecord, type Record } from "./records.js";

export type Node = Stub<typeof Native>;

/** An error of the broker: docs/formats/native.md has the codes. */
export class Refused extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly retriable: boolean,
    readonly leader = "",
  ) {
    super(`${code}: ${message}`);
  }

  /** Of an answer in a stream. */
  static inPlace(error: BrokerError): Refused {
    return new Refused(error.code, error.message, error.retriable, error.leaderAddress);
  }

  /** Of a call that failed. One that no broker answered may be made again. */
  static of(failure: unknown): Refused {
    const error = ConnectError.from(failure);
    const code = error.metadata.get("lakemq-error");
    const leader = error.metadata.get("lakemq-leader-address") ?? "";
    if (code) return new Refused(code, error.rawMessage, error.metadata.get("lakemq-retriable") === "1", leader);
    const lost = [Code.Unavailable, Code.Aborted, Code.DeadlineExceeded].includes(error.code);
    return new Refused(Code[error.code], error.rawMessage, lost);
  }
}

/** Produces and fetches. Calls of `produce` must not overlap. */
export class Client {
  readonly #sessions = new Map<string, Http2SessionManager>(); // by address
  readonly #leaders = new Map<string, string>(); // addresses
  #sequences = new Map<string, number>();
  #producer: InitProducerResponse | undefined;

  /** `bootstrap`: the node to begin with. Others are found when partitions are led there. */
  constructor(readonly bootstrap: string) {}

  node(place: string): Node {
    const baseUrl = `http://${this.#leaders.get(place) || this.bootstrap}`; // with TLS: https://
    const session = this.#sessions.get(baseUrl) ?? new Http2SessionManager(baseUrl);
    this.#sessions.set(baseUrl, session);
    return createClient(Native, createGrpcTransport({ baseUrl, sessionManager: session }));
  }

  close(): void {
    for (const each of this.#sessions.values()) each.abort();
  }

  lead(place: string, address: string): void {
    this.#leaders.set(place, address);
  }

  /** Makes a call at a leader: again, and elsewhere, as long as that may help. */
  async retry<Answer>(place: string, call: (node: Node, options: CallOptions) => Promise<Answer>): Promise<Answer> {
    for (let pause = 50; ; pause *= 2) {
      const end = new AbortController(); // a stream is left as soon as it has answered
      const late = new ConnectError("no answer in time", Code.DeadlineExceeded);
      const timer = setTimeout(() => end.abort(late), 10_000);
      try {
        return await call(this.node(place), { signal: end.signal });
      } catch (failure) {
        if (!(failure instanceof ConnectError || failure instanceof Refused)) throw failure;
        const refused = failure instanceof Refused ? failure : Refused.of(failure);
        if (!refused.retriable || pause > 5000) throw refused;
        this.lead(place, refused.leader);
      } finally {
        clearTimeout(timer);
        end.abort();
      }
      await sleep(pause);
    }
  }

  /** A topic's partitions as a node sees them: offsets are true at a partition's leader. */
  async topic(name: string, place = ""): Promise<Topic> {
    const answer = await this.retry(place, (node, options) => node.describe({ topics: [name] }, options));
    return answer.topics[0];
  }

  /** Appends a batch to one partition, once. The offset of its first record. */
  async produce(topic: string, partition: number, records: NewRecord[]): Promise<bigint> {
    const place = `${topic}/${partition}`;
    this.#producer ??= await this.retry("", (node, options) => node.initProducer({}, options));
    const { producerId, producerEpoch } = this.#producer;
    const sequence = this.#sequences.get(place) ?? 0;
    const batch = encode(records, producerId, producerEpoch, sequence);
    const request = create(ProduceRequestSchema, { topic, partition, acks: Acks.LEADER, batch });
    try {
      const offset = await this.retry(place, async (node, options) => {
        async function* once() {
          yield request;
        }
        for await (const answer of node.produce(once(), options)) {
          if (answer.error) throw Refused.inPlace(answer.error);
          return answer.baseOffset;
        }
        throw new Refused("UNAVAILABLE", "the stream ended without an answer", true);
      });
      this.#sequences.set(place, (sequence + records.length) % 2 ** 31);
      return offset;
    } catch (failure) {
      this.#producer = undefined; // the batch may be stored or not: no other may follow it under this id
      this.#sequences = new Map();
      throw failure;
    }
  }

  /** About a MiB of records from an offset on, and where to go on: there, at the end. */
  async fetch(topic: string, partition: number, offset: bigint): Promise<[Record[], bigint]> {
    const place = `${topic}/${partition}`;
    try {
      return await this.retry(place, async (node, options) => {
        for await (const answer of node.fetch({ topic, partition, offset }, options)) {
          // A batch comes whole.
          return [[...decode(answer.batches)].filter((each) => each.offset >= offset), answer.nextOffset];
        }
        return [[], offset];
      });
    } catch (failure) {
      if (!(failure instanceof Refused) || failure.code !== "OFFSET_OUT_OF_RANGE") throw failure;
      const { logStartOffset } = (await this.topic(topic, place)).partitions[partition];
      if (offset >= logStartOffset) throw failure;
      return [[], logStartOffset]; // retention has deleted what was asked for
    }
  }
}

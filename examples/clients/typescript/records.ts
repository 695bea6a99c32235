// Record batches, byte by byte as docs/formats/record-batch.md has them.
import { decompress as decompressZstd } from "fzstd";
import lz4 from "lz4js";

/** `null` is null, an empty Buffer is not. */
export interface NewRecord {
  key: Buffer | null;
  value: Buffer | null;
}

export interface Record extends NewRecord {
  /** As they lie in the batch. */
  headers: Buffer | null;
  /** Milliseconds since 1970. */
  timestamp: bigint;
  offset: bigint;
}

const HEADER_BYTES = 80;
const BODY_MAX_BYTES = 256 << 20;
const NULL = 0xffffffff;
const CODEC = 0x0007;
const WIDE = 0x0010;
const HAS_KEYS = 0x0020;
const HAS_HEADERS = 0x0040;
const SPARSE = 0x0080;
const CONTROL = 0x0100;

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});

function crc32c(data: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of data) crc = CRC_TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}

/** A batch of records that are sent now. A producer's sequence counts its records of a partition. */
export function encode(records: NewRecord[], producer: bigint, epoch: number, sequence: number): Buffer {
  const cells = [...records.map((each) => each.key), ...records.map((each) => each.value)];
  const fixed = Buffer.alloc(12 * records.length); // timestamp deltas, which are 0; lengths
  cells.forEach((cell, i) => fixed.writeUInt32LE(cell?.length ?? NULL, 4 * (records.length + i)));
  const body = Buffer.concat([fixed, ...cells.filter((cell) => cell !== null)]);
  const now = BigInt(Date.now());
  const header = Buffer.alloc(HEADER_BYTES);
  header.write("LMQB", "latin1");
  header.writeUInt8(1, 8);
  header.writeUInt16LE(HAS_KEYS, 10);
  header.writeUInt32LE(body.length, 12);
  header.writeUInt32LE(crc32c(body), 16);
  header.writeUInt32LE(records.length, 20);
  header.writeUInt16LE(epoch, 36);
  header.writeBigInt64LE(producer, 40);
  header.writeInt32LE(sequence, 48);
  header.writeUInt32LE(body.length, 52);
  header.writeBigInt64LE(now, 56);
  header.writeBigInt64LE(now, 64);
  header.writeUInt32LE(records.length - 1, 72);
  header.writeUInt32LE(crc32c(header.subarray(8)), 4);
  return Buffer.concat([header, body]);
}

/** Records of batches that lie back to back. */
export function* decode(bytes: Uint8Array): Generator<Record> {
  let data = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  while (data.length > 0) {
    const header = data.subarray(0, HEADER_BYTES);
    check(header.length === HEADER_BYTES && header.toString("latin1", 0, 4) === "LMQB" && header[8] === 1);
    check(crc32c(header.subarray(8)) === header.readUInt32LE(4));
    const end = HEADER_BYTES + header.readUInt32LE(12);
    const body = data.subarray(HEADER_BYTES, end);
    check(end <= data.length && crc32c(body) === header.readUInt32LE(16));
    if ((header.readUInt16LE(10) & CONTROL) === 0) yield* recordsOf(header, body);
    data = data.subarray(end);
  }
}

function* recordsOf(header: Buffer, stored: Buffer): Generator<Record> {
  const flags = header.readUInt16LE(10);
  const count = header.readUInt32LE(20);
  let rest = decompressed(flags & CODEC, stored, header.readUInt32LE(52));
  const take = (size: number): Buffer => {
    check(size <= rest.length);
    const taken = rest.subarray(0, size);
    rest = rest.subarray(size);
    return taken;
  };
  const column = (there: number, width = 4) => (there ? take(width * count) : null);
  const offsets = column(flags & SPARSE);
  const times = take((flags & WIDE ? 8 : 4) * count);
  const lengths = [column(flags & HAS_KEYS), column(1), column(flags & HAS_HEADERS)];
  const [keys, values, headers] = lengths.map((each) =>
    Array.from({ length: count }, (_, i) => {
      const size = each?.readUInt32LE(4 * i) ?? NULL;
      return size === NULL ? null : take(size);
    }),
  );
  for (let i = 0; i < count; i++) {
    const delta = flags & WIDE ? times.readBigInt64LE(8 * i) : BigInt(times.readUInt32LE(4 * i));
    yield {
      key: keys[i],
      value: values[i],
      headers: headers[i],
      timestamp: header.readBigInt64LE(56) + delta,
      offset: header.readBigInt64LE(24) + BigInt(offsets?.readUInt32LE(4 * i) ?? i),
    };
  }
}

function decompressed(codec: number, body: Buffer, size: number): Buffer {
  check(codec <= 2 && size <= BODY_MAX_BYTES);
  if (codec === 0) return body;
  const raw = codec === 1 ? lz4.decompress(body, size) : decompressZstd(body, new Uint8Array(size));
  check(raw.length === size);
  return Buffer.from(raw.buffer, raw.byteOffset, raw.length);
}

function check(holds: boolean): void {
  if (!holds) throw new Error("corrupt record batch");
}

/** Where records of a key go: murmur2, as other clients of LakeMQ and those of Kafka compute it. */
export function partitionOf(key: Buffer, partitions: number): number {
  const m = 0x5bd1e995;
  const whole = key.length & ~3;
  let h = 0x9747b28c ^ key.length;
  for (let i = 0; i < whole; i += 4) {
    const k = Math.imul(key.readInt32LE(i), m);
    h = Math.imul(h, m) ^ Math.imul(k ^ (k >>> 24), m);
  }
  for (let i = key.length - 1; i >= whole; i--) h ^= key[i] << (8 * (i - whole));
  if (key.length > whole) h = Math.imul(h, m);
  h = Math.imul(h ^ (h >>> 13), m);
  return ((h ^ (h >>> 15)) & 0x7fffffff) % partitions;
}

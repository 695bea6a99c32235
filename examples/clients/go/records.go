package main

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"
)

// Record is one of a topic. A nil Key or Value is null; an empty one is not.
type Record struct {
	Key, Value []byte
	Headers    []byte // as they lie in the batch: docs/formats/record-batch.md
	Timestamp  int64  // milliseconds since 1970
	Offset     int64
}

const (
	headerBytes = 80
	null        = 0xFFFFFFFF
	codec       = 0x0007
	wide        = 0x0010
	hasKeys     = 0x0020
	hasHeaders  = 0x0040
	sparse      = 0x0080
	control     = 0x0100
)

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errCorrupt = errors.New("corrupt record batch")
)

// Encode makes a batch of records that are sent now. A producer's sequence counts its records of a partition.
func Encode(records []Record, producer int64, epoch int32, sequence int32) []byte {
	body := make([]byte, 4*len(records)) // timestamp deltas: all 0
	for _, each := range records {
		body = le.AppendUint32(body, length(each.Key))
	}
	for _, each := range records {
		body = le.AppendUint32(body, length(each.Value))
	}
	for _, each := range records {
		body = append(body, each.Key...)
	}
	for _, each := range records {
		body = append(body, each.Value...)
	}
	header := make([]byte, headerBytes)
	now := uint64(time.Now().UnixMilli())
	copy(header, "LMQB")
	header[8] = 1
	le.PutUint16(header[10:], hasKeys)
	le.PutUint32(header[12:], uint32(len(body)))
	le.PutUint32(header[16:], crc32.Checksum(body, castagnoli))
	le.PutUint32(header[20:], uint32(len(records)))
	le.PutUint16(header[36:], uint16(epoch))
	le.PutUint64(header[40:], uint64(producer))
	le.PutUint32(header[48:], uint32(sequence))
	le.PutUint32(header[52:], uint32(len(body)))
	le.PutUint64(header[56:], now)
	le.PutUint64(header[64:], now)
	le.PutUint32(header[72:], uint32(len(records)-1))
	le.PutUint32(header[4:], crc32.Checksum(header[8:], castagnoli))
	return append(header, body...)
}

func length(cell []byte) uint32 {
	if cell == nil {
		return null
	}
	return uint32(len(cell))
}

// Decode takes batches that lie back to back.
func Decode(data []byte) (records []Record, err error) {
	for len(data) > 0 {
		if len(data) < headerBytes || string(data[:4]) != "LMQB" || data[8] != 1 ||
			crc32.Checksum(data[8:headerBytes], castagnoli) != le.Uint32(data[4:]) {
			return nil, errCorrupt
		}
		end := headerBytes + int(le.Uint32(data[12:]))
		if end > len(data) || crc32.Checksum(data[headerBytes:end], castagnoli) != le.Uint32(data[16:]) {
			return nil, errCorrupt
		}
		if records, err = appendRecords(records, data[:headerBytes], data[headerBytes:end]); err != nil {
			return nil, err
		}
		data = data[end:]
	}
	return records, nil
}

func appendRecords(records []Record, header, body []byte) ([]Record, error) {
	flags, count := le.Uint16(header[10:]), int(le.Uint32(header[20:]))
	body, err := decompress(flags&codec, body, int(le.Uint32(header[52:])))
	if err != nil || flags&control != 0 {
		return records, err
	}
	width := 4
	if flags&wide != 0 {
		width = 8
	}
	column := func(present bool, width int) (found []byte) { // the next one of fixed width
		if !present {
			return nil
		}
		if len(body) < width*count {
			err = errCorrupt
			return nil
		}
		found, body = body[:width*count], body[width*count:]
		return found
	}
	offsets := column(flags&sparse != 0, 4)
	times := column(true, width)
	lengths := [][]byte{column(flags&hasKeys != 0, 4), column(true, 4), column(flags&hasHeaders != 0, 4)}
	if err != nil {
		return nil, err
	}
	first := len(records)
	for i := range count {
		each := Record{Offset: int64(le.Uint64(header[24:])) + int64(i), Timestamp: int64(le.Uint64(header[56:]))}
		if offsets != nil {
			each.Offset += int64(le.Uint32(offsets[4*i:])) - int64(i)
		}
		if width == 8 {
			each.Timestamp += int64(le.Uint64(times[8*i:]))
		} else {
			each.Timestamp += int64(le.Uint32(times[4*i:]))
		}
		records = append(records, each)
	}
	for kind, column := range lengths {
		for i := range records[first:] {
			if column == nil || le.Uint32(column[4*i:]) == null {
				continue
			}
			size := int(le.Uint32(column[4*i:]))
			if size > len(body) {
				return nil, errCorrupt
			}
			each := &records[first+i]
			*[]*[]byte{&each.Key, &each.Value, &each.Headers}[kind] = body[:size:size]
			body = body[size:]
		}
	}
	return records, nil
}

// Partition is where records of a key go: murmur2, as other clients of LakeMQ and those of Kafka compute it.
func Partition(key []byte, partitions int) int32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := le.Uint32(key) * m
		h = h*m ^ (k^k>>24)*m
	}
	for i := len(key) - 1; i >= 0; i-- {
		h ^= uint32(key[i]) << (8 * i)
	}
	if len(key) > 0 {
		h *= m
	}
	h = (h ^ h>>13) * m
	return int32((h ^ h>>15) & 0x7fffffff % uint32(partitions))
}

// A client of LakeMQ in Go: produce, fetch, consumer groups. docs/clients.md tells how to build it.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
)

const usage = `client ADDRESS produce TOPIC            # lines of standard input: a key, a space, a value
client ADDRESS fetch TOPIC              # everything that is there
client ADDRESS consume TOPIC GROUP N    # N records, as a member of a group`

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, words []string) error {
	if len(words) < 3 || words[1] == "consume" && len(words) < 5 {
		return errors.New(usage)
	}
	client, topic := Connect(words[0]), words[2]
	defer client.Close()
	switch words[1] {
	case "produce":
		return produce(ctx, client, topic)
	case "fetch":
		return fetch(ctx, client, topic)
	case "consume":
		count, err := strconv.Atoi(words[4])
		if err != nil || count < 1 {
			return errors.New(usage)
		}
		err = client.Consume(ctx, words[3], topic, func(record Record, partition int32) error {
			show(record, partition)
			if count--; count == 0 {
				return Stop
			}
			return nil
		})
		if errors.Is(err, Stop) {
			return nil
		}
		return err
	}
	return errors.New(usage)
}

func produce(ctx context.Context, client *Client, topic string) error {
	found, err := client.Topic(ctx, place{topic, 0})
	if err != nil {
		return err
	}
	batches := map[int32][]Record{}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		key, value, _ := bytes.Cut(bytes.Clone(lines.Bytes()), []byte(" "))
		partition := Partition(key, len(found.Partitions))
		batches[partition] = append(batches[partition], Record{Key: key, Value: value})
	}
	for partition, records := range batches {
		offset, err := client.Produce(ctx, topic, partition, records)
		if err != nil {
			return err
		}
		fmt.Println(partition, offset, len(records))
	}
	return nil
}

func fetch(ctx context.Context, client *Client, topic string) error {
	found, err := client.Topic(ctx, place{topic, 0})
	if err != nil {
		return err
	}
	for _, each := range found.Partitions {
		for next := int64(0); ; {
			records, behind, err := client.Fetch(ctx, topic, each.Partition, next)
			if err != nil {
				return err
			}
			if behind == next {
				break
			}
			for _, record := range records {
				show(record, each.Partition)
			}
			next = behind
		}
	}
	return nil
}

func show(record Record, partition int32) {
	fmt.Printf("%d %d %s %s\n", partition, record.Offset, record.Key, record.Value)
}

package main

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "lakemq.example/client/lakemq/native/v1"
)

// Client produces and fetches. Calls must not overlap.
type Client struct {
	bootstrap string
	nodes     map[string]*grpc.ClientConn // by address
	leaders   map[place]string            // addresses
	producer  *pb.InitProducerResponse
	sequences map[place]int32
}

type place struct {
	topic     string
	partition int32
}

// Refused is an error of the broker: docs/formats/native.md has the codes.
type Refused struct {
	Code, Message, Leader string
	Retriable             bool
}

func (r *Refused) Error() string { return r.Code + ": " + r.Message }

// Connect names the node to begin with; others are found when partitions are led there.
func Connect(bootstrap string) *Client {
	return &Client{bootstrap: bootstrap, nodes: map[string]*grpc.ClientConn{}, leaders: map[place]string{}}
}

func (c *Client) node(address string) (pb.NativeClient, error) {
	if address == "" {
		address = c.bootstrap
	}
	if c.nodes[address] == nil { // with TLS: credentials.NewTLS(...)
		size := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32 << 20))
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), size)
		if err != nil {
			return nil, err
		}
		c.nodes[address] = conn
	}
	return pb.NewNativeClient(c.nodes[address]), nil
}

// Close ends all calls.
func (c *Client) Close() {
	for _, each := range c.nodes {
		_ = each.Close()
	}
}

// refusal is what a failed call means. A call that no broker answered may be made again.
func refusal(err error, trailers metadata.MD) error {
	get := func(name string) string { return append(trailers.Get(name), "")[0] }
	failed, code := status.Convert(err), get("lakemq-error")
	lost := code == "" && (failed.Code() == codes.Unavailable || failed.Code() == codes.DeadlineExceeded)
	if code == "" {
		code = failed.Code().String()
	}
	return &Refused{code, failed.Message(), get("lakemq-leader-address"), lost || get("lakemq-retriable") == "1"}
}

// retry makes a call at a leader: again, and elsewhere, as long as that may help.
func (c *Client) retry(ctx context.Context, at place, call func(context.Context, pb.NativeClient) error) error {
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		node, err := c.node(c.leaders[at])
		if err != nil {
			return err
		}
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		err = call(attempt, node)
		cancel()
		var refused *Refused
		if !errors.As(err, &refused) || !refused.Retriable || pause > 5*time.Second {
			return err
		}
		c.leaders[at] = refused.Leader
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// Topic tells a topic's partitions as a node sees them: offsets are true at a partition's leader.
func (c *Client) Topic(ctx context.Context, at place) (found *pb.Topic, err error) {
	err = c.retry(ctx, at, func(ctx context.Context, node pb.NativeClient) error {
		var trailers metadata.MD
		answer, err := node.Describe(ctx, &pb.DescribeRequest{Topics: []string{at.topic}}, grpc.Trailer(&trailers))
		if err != nil {
			return refusal(err, trailers)
		}
		found = answer.Topics[0]
		return nil
	})
	return found, err
}

// Produce appends a batch to one partition, once, and gives the offset of its first record.
func (c *Client) Produce(ctx context.Context, topic string, partition int32, records []Record) (offset int64, err error) {
	at := place{topic, partition}
	if c.producer == nil {
		c.sequences = map[place]int32{}
		err = c.retry(ctx, place{}, func(ctx context.Context, node pb.NativeClient) error {
			var trailers metadata.MD
			if c.producer, err = node.InitProducer(ctx, &pb.InitProducerRequest{}, grpc.Trailer(&trailers)); err != nil {
				return refusal(err, trailers)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	request := &pb.ProduceRequest{Topic: topic, Partition: partition, Acks: pb.Acks_ACKS_LEADER,
		Batch: Encode(records, c.producer.ProducerId, c.producer.ProducerEpoch, c.sequences[at])}
	err = c.retry(ctx, at, func(ctx context.Context, node pb.NativeClient) error {
		stream, err := node.Produce(ctx)
		if err != nil {
			return refusal(err, nil)
		}
		_ = stream.Send(request) // what went wrong is told by Recv
		_ = stream.CloseSend()
		answer, err := stream.Recv()
		if err != nil {
			return refusal(err, stream.Trailer())
		}
		offset = answer.BaseOffset
		return inPlace(answer.Error)
	})
	if err != nil {
		c.producer = nil // the batch may be stored or not: no other may follow it under this id
	} else {
		c.sequences[at] = (c.sequences[at] + int32(len(records))) & math.MaxInt32
	}
	return offset, err
}

func inPlace(e *pb.Error) error {
	if e == nil {
		return nil
	}
	return &Refused{e.Code, e.Message, e.LeaderAddress, e.Retriable}
}

// Fetch gives about a MiB of records from an offset on, and where to go on: there, at the end.
func (c *Client) Fetch(ctx context.Context, topic string, partition int32, offset int64) (records []Record, next int64, err error) {
	at, next := place{topic, partition}, offset
	err = c.retry(ctx, at, func(ctx context.Context, node pb.NativeClient) error {
		stream, err := node.Fetch(ctx, &pb.FetchRequest{Topic: topic, Partition: partition, Offset: offset})
		if err != nil {
			return refusal(err, nil)
		}
		answer, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return refusal(err, stream.Trailer())
		}
		next = answer.NextOffset
		records, err = Decode(answer.Batches)
		return err
	})
	for len(records) > 0 && records[0].Offset < offset { // its batch came whole
		records = records[1:]
	}
	var refused *Refused
	if !errors.As(err, &refused) || refused.Code != "OFFSET_OUT_OF_RANGE" {
		return records, next, err
	}
	found, failed := c.Topic(ctx, at) // retention may have deleted what was asked for
	if failed == nil && offset < found.Partitions[partition].LogStartOffset {
		return nil, found.Partitions[partition].LogStartOffset, nil
	}
	return nil, offset, err
}

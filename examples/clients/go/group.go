package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "lakemq.example/client/lakemq/native/v1"
)

// A member of a consumer group. The rules are those of docs/formats/native.md, "Consumer groups".
type member struct {
	*Client
	group, topic, id string
	stream           pb.Native_JoinGroupClient
	end              context.CancelFunc
	heard            chan told
	newest           *pb.GroupAssignment          // nil: not joined yet
	holds            map[int32]*pb.GroupPartition // as they were given
	next             map[int32]int64              // offset behind the last record that was handled
	sent             map[uint64]time.Time         // heartbeats without an answer
	beats, commits   uint64                       // numbers of the last ones
	beatAt           time.Time                    // of the next heartbeat
	lease, claim     time.Time                    // nothing is handed out, nothing is claimed, from then on
}

type told struct {
	assignment *pb.GroupAssignment
	err        error // the stream has ended
}

// Stop is what a handler returns for the last record that it wants: it is handled.
var Stop = errors.New("stop")

// Consume hands a topic's records out as one member of a group, and commits what was handled, until the
// handler or the context ends it. The session ends when the handler needs 10 s for a record.
func (c *Client) Consume(ctx context.Context, group, topic string, handle func(Record, int32) error) error {
	for {
		m := &member{Client: c, group: group, topic: topic, id: rand.Text(), next: map[int32]int64{},
			holds: map[int32]*pb.GroupPartition{}, sent: map[uint64]time.Time{}}
		err := m.run(ctx, handle)
		m.leave()
		var refused *Refused
		if !errors.As(err, &refused) || refused.Code != "UNKNOWN_MEMBER" && refused.Code != "MEMBER_FENCED" {
			return err
		} // rule 6: everything is lost, join with a new id
	}
}

func (m *member) run(ctx context.Context, handle func(Record, int32) error) error {
	if err := m.connect(ctx); err != nil {
		return err
	}
	for {
		if err := m.tend(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		for partition, held := range m.holds {
			records, next, err := m.Fetch(ctx, m.topic, partition, m.next[partition])
			if err != nil {
				return err
			}
			if err = m.handOut(ctx, partition, held, records, handle); err != nil {
				return err
			}
			if m.holds[partition] == held && len(records) == 0 && next > m.next[partition] {
				m.next[partition] = next // what lies between is deleted
			}
		}
	}
}

func (m *member) handOut(ctx context.Context, partition int32, held *pb.GroupPartition, records []Record,
	handle func(Record, int32) error) error {
	for _, record := range records {
		if err := m.tend(ctx, 0); err != nil {
			return err
		}
		if m.holds[partition] != held || time.Now().After(m.lease) {
			return nil // it comes again, here or at the partition's next owner
		}
		err := handle(record, partition)
		if err == nil || err == Stop {
			m.next[partition] = record.Offset + 1
		}
		if err != nil {
			return errors.Join(err, m.commit(ctx, partition))
		}
	}
	if len(records) == 0 {
		return nil
	}
	return m.commit(ctx, partition)
}

// tend does what is due: it takes what the coordinator says, waiting a while for it, and sends heartbeats.
func (m *member) tend(ctx context.Context, wait time.Duration) error {
	if !time.Now().Before(m.beatAt) {
		m.beat(pb.Intent_INTENT_STAY)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case heard := <-m.heard:
		return m.take(ctx, heard)
	case <-time.After(wait):
		return nil
	}
}

func (m *member) connect(ctx context.Context) error {
	at := place{"group " + m.group, 0} // where the client keeps the coordinator's address
	node, err := m.node(m.leaders[at])
	if err != nil {
		return err
	}
	clear(m.sent)
	m.lease = time.Time{}                                       // until the new stream has brought an answer
	ctx, m.end = context.WithCancel(context.WithoutCancel(ctx)) // so that it can still leave
	stream, err := node.JoinGroup(ctx)
	if err != nil {
		return refusal(err, nil)
	}
	heard := make(chan told)
	go func() {
		for {
			assignment, err := stream.Recv()
			if err != nil {
				err = refusal(err, stream.Trailer())
			}
			select {
			case heard <- told{assignment, err}:
			case <-ctx.Done():
			}
			if err != nil {
				return
			}
		}
	}()
	m.stream, m.heard = stream, heard
	m.beat(pb.Intent_INTENT_STAY)
	return nil
}

func (m *member) beat(intent pb.Intent) {
	m.beats++
	beat := &pb.GroupHeartbeat{Group: m.group, MemberId: m.id, Sequence: m.beats, Intent: intent, Topics: []string{m.topic}}
	if m.newest == nil && intent == pb.Intent_INTENT_STAY {
		beat.Intent = pb.Intent_INTENT_JOIN
	} else {
		beat.Revision = m.newest.GetRevision()
	}
	for partition, held := range m.holds {
		one := &pb.GroupPartition{Topic: m.topic, Partition: partition}
		if time.Now().Before(m.claim) {
			one.Epoch = held.Epoch
		}
		beat.Holds = append(beat.Holds, one)
	}
	interval := max(m.newest.GetHeartbeatIntervalMs(), 500)
	m.sent[m.beats], m.beatAt = time.Now(), time.Now().Add(time.Duration(interval)*time.Millisecond)
	_ = m.stream.Send(beat) // a stream that has ended says so by Recv
}

func (m *member) take(ctx context.Context, heard told) error {
	var refused *Refused
	if errors.As(heard.err, &refused) && refused.Retriable { // rule 5: a new stream, the same id
		m.leaders[place{"group " + m.group, 0}] = refused.Leader
		m.end()
		time.Sleep(200 * time.Millisecond)
		return m.connect(ctx)
	}
	newest := heard.assignment
	if heard.err != nil || newest.Error != nil {
		if err := errors.Join(heard.err, inPlace(newest.GetError())); !newest.GetError().GetRetriable() {
			return err
		}
		return nil // the next heartbeat asks again
	}
	if sent, ok := m.sent[newest.Sequence]; ok { // rule 5, and 5 % for clocks that differ
		session := newest.SessionTimeoutMs
		if newest.TakeoverMs > 0 {
			session = min(session, newest.TakeoverMs)
		}
		m.lease = sent.Add(time.Duration(session) * 950 * time.Microsecond)
		m.claim = m.lease
		delete(m.sent, newest.Sequence)
	}
	if m.newest != nil && newest.Revision < m.newest.Revision { // rule 2
		return nil
	}
	m.newest = newest
	given := map[int32]*pb.GroupPartition{}
	for _, each := range newest.Partitions {
		given[each.Partition] = each
	}
	for partition, held := range m.holds {
		if given[partition] == nil { // rule 3
			if err := m.commit(ctx, partition); err != nil {
				return err
			}
		}
		if given[partition].GetEpoch() != held.Epoch { // rules 3 and 4
			delete(m.holds, partition)
			m.beatAt = time.Now()
		}
	}
	for partition, each := range given {
		if m.holds[partition] == nil {
			m.holds[partition], m.next[partition] = each, max(each.CommittedOffset, 0)
			m.beatAt = time.Now()
		}
	}
	return nil
}

// commit makes what was handled of a partition durable.
func (m *member) commit(ctx context.Context, partition int32) error {
	return m.retry(ctx, place{"group " + m.group, 0}, func(ctx context.Context, node pb.NativeClient) error {
		var trailers metadata.MD
		m.commits++
		offset := &pb.OffsetCommit{Topic: m.topic, Partition: partition, Offset: m.next[partition]}
		_, err := node.CommitOffsets(ctx, &pb.CommitOffsetsRequest{Group: m.group, MemberId: m.id, Sequence: m.commits,
			MemberEpoch: m.newest.MemberEpoch, Offsets: []*pb.OffsetCommit{offset}}, grpc.Trailer(&trailers))
		if err != nil {
			return refusal(err, trailers)
		}
		return nil
	})
}

// leave frees the partitions at once; without it the coordinator waits for the end of the session.
func (m *member) leave() {
	if m.stream == nil {
		return
	}
	clear(m.holds)
	m.beat(pb.Intent_INTENT_LEAVE)
	_ = m.stream.CloseSend()
	for late := time.After(2 * time.Second); ; {
		select {
		case heard := <-m.heard:
			if heard.err == nil {
				continue
			}
		case <-late:
		}
		m.end()
		return
	}
}

// Command kafka sends and reads units of work with franz-go.
//
//	kafka send BOOTSTRAP DESTINATION ID ITEM...    a unit, in one transaction
//	kafka read BOOTSTRAP DESTINATION GROUP COUNT   at least so many units, a line of JSON each
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"example.org/uow/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	switch {
	case len(arguments) > 4 && arguments[0] == "send":
		return send(ctx, arguments[1], arguments[2], arguments[3], arguments[4:])
	case len(arguments) == 5 && arguments[0] == "read":
		count, err := strconv.Atoi(arguments[4])
		if err != nil {
			return err
		}
		return read(ctx, arguments[1], arguments[2], arguments[3], count)
	}
	return errors.New("usage: kafka send BOOTSTRAP DESTINATION ID ITEM... | read BOOTSTRAP DESTINATION GROUP COUNT")
}

func send(ctx context.Context, bootstrap, destination, id string, items []string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		// stable: a successor of that name ends at once what this one leaves open
		kgo.TransactionalID("example-go-producer"),
		// the default partitioner is murmur2, as Java's
	)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	var records []*kgo.Record
	for _, each := range wire.Components(destination, id, items) {
		record := &kgo.Record{Topic: each.Topic, Key: []byte(each.Key), Value: []byte(each.Value)}
		for _, header := range each.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header[0], Value: []byte(header[1])})
		}
		records = append(records, record)
	}
	results := client.ProduceSync(ctx, records...)
	if err := results.FirstErr(); err != nil {
		return errors.Join(err, client.EndTransaction(ctx, kgo.TryAbort))
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	partitions := make([]int32, len(results))
	for index, each := range results {
		partitions[index] = each.Record.Partition
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"id": id, "partitions": partitions})
}

func read(ctx context.Context, bootstrap, destination, group string, count int) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(destination+".units"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), // not the default
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	out := json.NewEncoder(os.Stdout)
	for count > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if !isUnit(record) {
				continue // plain records pass through the same topic
			}
			unit, err := wire.Read(record.Value)
			if err != nil {
				return err
			}
			if err := out.Encode(unit); err != nil {
				return err
			}
			count--
		}
		// once the units are dealt with, not before
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
	}
	return nil
}

func isUnit(record *kgo.Record) bool {
	kind := ""
	for _, header := range record.Headers {
		switch header.Key {
		case "uow-kind":
			kind = string(header.Value)
		case "uow-seq":
			return false
		}
	}
	return kind == "unit"
}

// Command wire shows the wire format of units of work, without any Kafka.
//
//	wire records DESTINATION PARTITIONS ID ITEM...   the components of a unit, a line of JSON each
//	wire partitions PARTITIONS                       a partition for each key on standard input, in hexadecimal
//	wire unit                                        values of D.units on standard input, in hexadecimal, as JSON
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"example.org/uow/wire"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func run(arguments []string) error {
	out := json.NewEncoder(os.Stdout)
	switch {
	case len(arguments) > 4 && arguments[0] == "records":
		partitions, err := strconv.Atoi(arguments[2])
		if err != nil {
			return err
		}
		for _, each := range wire.Components(arguments[1], arguments[3], arguments[4:]) {
			record := struct {
				wire.Component
				Partition int `json:"partition"`
			}{each, wire.PartitionFor([]byte(each.Key), partitions)}
			if err := out.Encode(record); err != nil {
				return err
			}
		}
		return nil
	case len(arguments) == 2 && arguments[0] == "partitions":
		partitions, err := strconv.Atoi(arguments[1])
		if err != nil {
			return err
		}
		return eachLine(func(key []byte) error {
			_, err := fmt.Println(wire.PartitionFor(key, partitions))
			return err
		})
	case len(arguments) == 1 && arguments[0] == "unit":
		return eachLine(func(value []byte) error {
			unit, err := wire.Read(value)
			if err != nil {
				return err
			}
			return out.Encode(unit)
		})
	}
	return fmt.Errorf("usage: wire records DESTINATION PARTITIONS ID ITEM... | partitions PARTITIONS | unit")
}

func eachLine(do func([]byte) error) error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		raw, err := hex.DecodeString(lines.Text())
		if err != nil {
			return err
		}
		if err := do(raw); err != nil {
			return err
		}
	}
	return lines.Err()
}

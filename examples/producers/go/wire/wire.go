// Package wire is the wire format of units of work: the records of a unit, the partition of a key, and a unit in Avro.
// It needs nothing but the standard library; docs/wire-format.md defines all of it.
package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// Component is a record of D.components.
type Component struct {
	Topic   string      `json:"topic"`
	Key     string      `json:"key"`
	Value   string      `json:"value"`
	Headers [][2]string `json:"headers"`
}

// Components of a unit: the same id on all, numbers from 1, the end mark on the last one.
func Components(destination, id string, items []string) []Component {
	made := make([]Component, len(items))
	for index, item := range items {
		headers := [][2]string{
			{"uow-id", id},
			{"uow-seq", strconv.Itoa(index + 1)},
			{"uow-component-id", uuid()},
		}
		if index == len(items)-1 {
			headers = append(headers, [2]string{"uow-end", "true"})
		}
		made[index] = Component{destination + ".components", id, item, headers}
	}
	return made
}

func uuid() string {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		panic(err)
	}
	raw[6] = raw[6]&0x0f | 0x40
	raw[8] = raw[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
}

// PartitionFor is the partition of a key: murmur2 with the highest bit cleared, modulo the number of partitions.
func PartitionFor(key []byte, partitions int) int {
	return int(murmur2(key)&0x7fffffff) % partitions
}

func murmur2(key []byte) uint32 {
	const factor = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * factor
		k ^= k >> 24
		h = h*factor ^ k*factor
	}
	if len(key) > 0 {
		var rest [4]byte
		copy(rest[:], key)
		h = (h ^ binary.LittleEndian.Uint32(rest[:])) * factor
	}
	h = (h ^ h>>13) * factor
	return h ^ h>>15
}

// Unit is what a unit of D.units says.
type Unit struct {
	ID      string     `json:"id"`
	UnitID  string     `json:"unit_id"`
	Outcome string     `json:"outcome"`
	Missing [][2]int64 `json:"missing"`
	// Number and value of each component; a value that is null, or that stayed at its source (shape reference), is nil.
	Components [][2]any `json:"components"`
}

var (
	unit1    = []byte{0xc3, 0x01, 0x19, 0xa0, 0xf7, 0x87, 0x5c, 0x56, 0xf1, 0x52}
	outcomes = []string{"complete", "partial", "expired", "cancelled", "failed"}
)

// Read takes a unit of shape envelope or reference in Avro single-object encoding apart.
func Read(value []byte) (unit Unit, err error) {
	if !bytes.HasPrefix(value, unit1) {
		return unit, errors.New("not a uow.Unit of version 1 in Avro single-object encoding")
	}
	defer func() {
		if recover() != nil {
			err = errors.New("the value ends in the middle of a unit, or is none")
		}
	}()
	in := &avro{value[len(unit1):]}
	unit.ID, unit.UnitID = string(in.bytes()), string(in.bytes())
	in.bytes()  // destination
	in.number() // generation
	unit.Outcome = outcomes[in.number()]
	in.number() // reason
	in.number() // opened_at
	in.number() // closed_at
	if in.number() == 1 {
		in.number() // expires_at
	}
	in.number() // count
	in.number() // bytes
	unit.Missing, unit.Components = [][2]int64{}, [][2]any{}
	in.array(func() { unit.Missing = append(unit.Missing, [2]int64{in.number(), in.number()}) })
	in.array(func() { unit.Components = append(unit.Components, component(in)) })
	return unit, nil
}

func component(in *avro) [2]any {
	seq := in.number()
	in.take(1)    // end
	in.optional() // component_id
	in.optional() // key
	value := in.optional()
	in.array(func() { in.bytes(); in.optional() }) // headers
	in.number()                                    // timestamp
	in.bytes()                                     // source: topic
	in.number()                                    // partition
	in.number()                                    // offset
	if in.number() == 1 {                          // reference: length and checksum of a value that lies at the source
		in.number()
		in.number()
	}
	if value == nil {
		return [2]any{seq, nil}
	}
	return [2]any{seq, string(value)}
}

// The few kinds of Avro's binary encoding that a unit is made of. Reading behind the end panics.
type avro struct{ rest []byte }

func (in *avro) take(length int64) []byte {
	taken := in.rest[:length]
	in.rest = in.rest[length:]
	return taken
}

func (in *avro) number() int64 {
	number, length := binary.Varint(in.rest)
	if length <= 0 {
		panic("no number")
	}
	in.rest = in.rest[length:]
	return number
}

func (in *avro) bytes() []byte { return in.take(in.number()) }

// optional is null, or bytes or a text: a union of two branches.
func (in *avro) optional() []byte {
	if in.number() == 0 {
		return nil
	}
	return in.bytes()
}

// array reads blocks of items; a negative count has the block's size in bytes behind it.
func (in *avro) array(read func()) {
	for count := in.number(); count != 0; count = in.number() {
		if count < 0 {
			count = -count
			in.number()
		}
		for ; count > 0; count-- {
			read()
		}
	}
}

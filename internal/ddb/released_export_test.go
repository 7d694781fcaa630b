package ddb

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Version and the others are what tests of released rows need.
const Version = version

var (
	CheckVersion = checkVersion
	OfVersions   = ofVersions
)

// Shape is a kind of row in one of its states: Write is the item of a record that has a
// value in every member, as this code writes it, and Read is what this code reads of one.
type Shape struct {
	Write func() (map[string]types.AttributeValue, error)
	Read  func(map[string]types.AttributeValue) (any, error)
}

// filled is a record that has a value in every member, the same at each call.
func filled[T any](change func(*T)) T {
	var record T
	next := 0
	fill(reflect.ValueOf(&record).Elem(), "", &next)
	if change != nil {
		change(&record)
	}
	return record
}

func fill(v reflect.Value, name string, next *int) {
	*next++
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(int64(1_796_000_000_000 + *next))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*next % 200))
	case reflect.Float64:
		v.SetFloat(float64(*next) / 4)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name, next)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"a":1}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), name, next)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, name, next)
		fill(value, name, next)
		v.SetMapIndex(key, value)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), name, next)
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if field.IsExported() {
				fill(value, field.Name, next)
			}
		}
	default:
		panic(fmt.Sprintf("fill %s: no value for a %s", name, v.Kind()))
	}
}

func shapeOf[T any](record T, write func(T) (item, error), read func(item) (T, error)) Shape {
	return Shape{
		Write: func() (map[string]types.AttributeValue, error) { return write(record) },
		Read:  func(it map[string]types.AttributeValue) (any, error) { return read(it) },
	}
}

// runIn is a run that stands in that row.
func runIn(row core.Row, status core.Status) Shape {
	return shapeOf(filled(func(r *core.Run) {
		r.Row, r.Status = row, status
		r.Checkpoint.State, r.Reclaim, r.OnLapse = core.CheckpointOwed, core.ReclaimEnd, core.LapseDetaches
		if !row.Due() {
			r.DueAt = 0
		}
	}), encodeRun, decodeRun)
}

func rowIn(state core.LedgerState) Shape {
	return shapeOf(filled(func(r *core.LedgerRow) { r.State = state }), encodeLedger, decodeLedger)
}

// Shapes is every kind of row that is stored, in each state that has attributes of its own.
func Shapes() map[string]Shape {
	key := core.RunKey{Tenant: "acme", Run: "a run/1"}
	return map[string]Shape{
		"run attached": runIn(core.RowLapse, core.Running), "run detached": runIn(core.RowDetached, core.Running), "run paused": runIn(core.RowPause, core.Interrupted),
		"run cancelled": runIn(core.RowCancel, core.Running), "run to be reclaimed": runIn(core.RowReclaim, core.Completed), "run ended": runIn(core.RowNone, core.Failed),
		"segment": shapeOf(filled[core.Segment](nil), func(s core.Segment) (item, error) { return encodeSegment(key, s) }, decodeSegment),
		"note": shapeOf(filled[core.Note](nil), func(n core.Note) (item, error) { return attributevalue.MarshalMap(newNoteRow(key, n)) }, func(it item) (core.Note, error) {
			var row noteRow
			err := attributevalue.UnmarshalMap(it, &row)
			return row.note(), errors.Join(err, row.check())
		}),
		"sandbox serving": shapeOf(filled(func(s *core.Sandbox) { s.DueAt = 0 }), encodeSandbox, decodeSandbox),
		"sandbox idle":    shapeOf(filled[core.Sandbox](nil), encodeSandbox, decodeSandbox),
		"ledger intent":   rowIn(core.LedgerIntent), "ledger running": rowIn(core.LedgerRunning), "ledger stopping": rowIn(core.LedgerStopping), "ledger closed": rowIn(core.LedgerClosed),
		"control": shapeOf(filled(func(c *core.Control) { c.Mode = core.Enforce }), encodeControl, decodeControl),
		"audit":   shapeOf(filled(func(e *core.AuditEntry) { e.At = 1_796_000_000_000 }), func(e core.AuditEntry) (item, error) { return encodeAudit(e, "nonce") }, decodeAudit),
		"cursor": shapeOf(filled[core.Cursor](nil), func(c core.Cursor) (item, error) {
			return attributevalue.MarshalMap(cursorRow{head{"cursor#1", "cursor", version}, c.AfterSince, string(c.AfterRun), c.LapStarted})
		}, func(it item) (core.Cursor, error) { return decodeCursor(1, it) }),
		"thread":     shapeOf(filled(func(th *core.Thread) { th.Step.State = core.StepWorking }), encodeThread, threadDecoder(filled[core.Thread](nil).ThreadKey)),
		"checkpoint": shapeOf(filled[core.Checkpoint](nil), encodeCheckpoint, decodeCheckpoint),
		"id":         shapeOf(filled[core.CheckpointName](nil), func(n core.CheckpointName) (item, error) { return encodeName("acme", n) }, decodeName),
		"pin":        shapeOf(filled(func(p *core.Pin) { p.By.Tenant = p.Owner.Tenant }), encodePin, decodePin),
		"artifact": shapeOf(filled[core.Artifact](nil), func(a core.Artifact) (item, error) {
			return attributevalue.MarshalMap(artifactItem{head{"acme#t", artifactSK(a.Run, a.ID), version}, artifactOf(a)})
		}, decodeArtifact),
	}
}

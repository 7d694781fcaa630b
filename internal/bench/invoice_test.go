package bench_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
)

// functionGB is the memory of the functions, as the stack sets it.
var functionGB = map[string]float64{
	"session": 0.5, "tools": 0.5, "checkpoint": 1, "reap": reapGB, "probe": probeGB, "reclaim": reclaimGB,
}

// callPrices are of requests that are charged one by one, by service and operation.
var callPrices = map[string]float64{
	"S3 PutObject": pricePut, "S3 ListObjectsV2": pricePut, "S3 ListObjectVersions": pricePut, "S3 GetObject": priceGet, "S3 HeadObject": priceGet,
	"SQS SendMessage": priceSQS, "SQS SendMessageBatch": priceSQS, "SQS ReceiveMessage": priceSQS, "SQS DeleteMessage": priceSQS, "SQS ChangeMessageVisibility": priceSQS,
	"EventBridge PutEvents": priceEvent, "Scheduler Invocation": priceSchedule,
}

// invoice is what one run comes to: the requests of functions' adapters, which it sees on
// their way to an engine, and the invocations that they are made in. How long those take
// is assumed, from what they ask.
type invoice struct {
	looks *dynamodb.Client // at items before and after a write; nobody's
	mu    sync.Mutex
	units units
	calls map[string]int
	spent map[string]*billed // by function
	open  []time.Duration    // invocations under way, the innermost last
}

func newInvoice(looks *dynamodb.Client) *invoice {
	return &invoice{looks: looks, calls: map[string]int{}, spent: map[string]*billed{}}
}

// invoke has something be done in an invocation. Whoever invokes from an invocation waits.
func (v *invoice) invoke(function string, do func() error) (time.Duration, error) {
	v.mu.Lock()
	v.open = append(v.open, 0)
	v.mu.Unlock()
	err := do()
	v.mu.Lock()
	defer v.mu.Unlock()
	last := len(v.open) - 1
	took := v.open[last]
	v.open = v.open[:last]
	if v.spent[function] == nil {
		v.spent[function] = &billed{}
	}
	v.spent[function].add(took)
	if last > 0 {
		v.open[last-1] += took + likely.invoke
	}
	return took, err
}

// count charges requests of one kind.
func (v *invoice) count(call string, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.calls[call] += n
}

// takes lets the invocation under way last longer.
func (v *invoice) takes(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := len(v.open); n > 0 {
		v.open[n-1] += d
	}
}

// bill prices it all.
func (v *invoice) bill() bill {
	b := bill{dynamo: v.units.read*priceRead + v.units.write*priceWrite}
	for name, f := range v.spent {
		b.lambda += functionGB[name]*f.time.Seconds()*priceGBSecond + float64(f.calls)*priceInvoke
		b.logs += float64(f.calls) * logOfCall * priceLogByte
	}
	for call, n := range v.calls {
		b.others += callPrices[call] * float64(n)
	}
	return b
}

// counted tells what was counted.
func (v *invoice) counted() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v.spent)) {
		f := v.spent[name]
		parts = append(parts, fmt.Sprintf("%d %s %.1f GB-s", f.calls, name, functionGB[name]*f.time.Seconds()))
	}
	for _, call := range slices.Sorted(maps.Keys(v.calls)) {
		if callPrices[call] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", v.calls[call], call))
		}
	}
	return fmt.Sprintf("%.0f read and %.0f write units; ", v.units.read, v.units.write) + strings.Join(parts, ", ")
}

// instrument has a client's requests charged. What is only signed, for somebody else to
// send, is no request.
func (v *invoice) instrument(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("Invoice",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			written := targets(in.Parameters)
			before := v.images(ctx, written)
			out, metadata, err := next.HandleInitialize(ctx, in)
			if _, signed := out.Result.(*v4.PresignedHTTPRequest); signed {
				return out, metadata, err
			}
			after := v.images(ctx, written)
			v.takes(likely.store)
			v.count(awsmiddleware.GetServiceID(ctx)+" "+awsmiddleware.GetOperationName(ctx), 1)
			v.mu.Lock()
			defer v.mu.Unlock()
			v.units.read += readBy(in.Parameters, out.Result)
			for i, w := range written {
				v.units.write += w.times*writeUnits(max(before[i].size(), after[i].size())) + indexWrites(before[i], after[i])
			}
			return out, metadata, err
		}), middleware.After)
}

// target is an item that a request writes, and how often it is charged.
type target struct {
	table *string
	key   map[string]types.AttributeValue
	times float64
}

// targets are what a request writes, or fails to: that is charged too. A transaction is
// charged twice for each item, one that it only looks at among them.
func targets(in any) (all []target) {
	keyOf := func(it map[string]types.AttributeValue) map[string]types.AttributeValue {
		return map[string]types.AttributeValue{"pk": it["pk"], "sk": it["sk"]}
	}
	switch in := in.(type) {
	case *dynamodb.PutItemInput:
		return []target{{in.TableName, keyOf(in.Item), 1}}
	case *dynamodb.UpdateItemInput:
		return []target{{in.TableName, in.Key, 1}}
	case *dynamodb.DeleteItemInput:
		return []target{{in.TableName, in.Key, 1}}
	case *dynamodb.TransactWriteItemsInput:
		for _, part := range in.TransactItems {
			switch {
			case part.Put != nil:
				all = append(all, target{part.Put.TableName, keyOf(part.Put.Item), 2})
			case part.Update != nil:
				all = append(all, target{part.Update.TableName, part.Update.Key, 2})
			case part.Delete != nil:
				all = append(all, target{part.Delete.TableName, part.Delete.Key, 2})
			case part.ConditionCheck != nil:
				all = append(all, target{part.ConditionCheck.TableName, part.ConditionCheck.Key, 2})
			}
		}
	}
	return all
}

// images are the items as they are stored.
func (v *invoice) images(ctx context.Context, all []target) []attributes {
	images := make([]attributes, len(all))
	for i, at := range all {
		out, err := v.looks.GetItem(ctx, &dynamodb.GetItemInput{TableName: at.table, Key: at.key, ConsistentRead: new(true)})
		if err != nil {
			panic(err) // nothing could be priced
		}
		images[i] = plain(out.Item)
	}
	return images
}

// readBy is what a request is charged for what it has read.
func readBy(in, out any) float64 {
	consistent := func(yes *bool) float64 {
		if yes != nil && *yes {
			return 1
		}
		return 0.5
	}
	size := func(items ...map[string]types.AttributeValue) (n int) {
		for _, it := range items {
			n += plain(it).size()
		}
		return n
	}
	switch out := out.(type) {
	case *dynamodb.GetItemOutput:
		return readUnits(size(out.Item)) * consistent(in.(*dynamodb.GetItemInput).ConsistentRead)
	case *dynamodb.QueryOutput:
		return readUnits(size(out.Items...)) * consistent(in.(*dynamodb.QueryInput).ConsistentRead)
	case *dynamodb.BatchGetItemOutput:
		n := 0.0
		for table, asked := range in.(*dynamodb.BatchGetItemInput).RequestItems {
			for _, it := range out.Responses[table] {
				n += readUnits(size(it)) * consistent(asked.ConsistentRead)
			}
		}
		return n
	}
	return 0
}

// plain is an item as DynamoDB's JSON has it.
func plain(it map[string]types.AttributeValue) attributes {
	if it == nil {
		return nil
	}
	all := attributes{}
	for name, value := range it {
		all[name] = plainValue(value)
	}
	return all
}

func plainValue(value types.AttributeValue) map[string]any {
	switch v := value.(type) {
	case *types.AttributeValueMemberS:
		return map[string]any{"S": v.Value}
	case *types.AttributeValueMemberN:
		return map[string]any{"N": v.Value}
	case *types.AttributeValueMemberB:
		return map[string]any{"B": base64.StdEncoding.EncodeToString(v.Value)}
	case *types.AttributeValueMemberSS:
		return map[string]any{"S": strings.Join(v.Value, "")}
	case *types.AttributeValueMemberM:
		members := map[string]any{}
		for name, member := range v.Value {
			members[name] = plainValue(member)
		}
		return map[string]any{"M": members}
	case *types.AttributeValueMemberL: // as long as a map with short names
		members := map[string]any{}
		for i, member := range v.Value {
			members[strconv.Itoa(i)] = plainValue(member)
		}
		return map[string]any{"M": members}
	}
	return map[string]any{"BOOL": true}
}

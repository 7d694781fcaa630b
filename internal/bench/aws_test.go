package bench_test

import (
	"cmp"
	"crypto/md5" // SQS signs what it took so
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// attributes are an item as DynamoDB's JSON has it: a value is an object of one
// member, its type.
type attributes map[string]map[string]any

func (a attributes) text(name string) string {
	for _, v := range a[name] {
		return fmt.Sprint(v)
	}
	return ""
}

// size is what an item counts at DynamoDB: its names and its values.
func (a attributes) size() int {
	n := 0
	for name, value := range a {
		n += len(name) + valueSize(value)
	}
	return n
}

func valueSize(value map[string]any) int {
	for kind, v := range value {
		switch v := v.(type) {
		case string:
			switch kind {
			case "N":
				return len(v)/2 + 1
			case "B":
				return base64.StdEncoding.DecodedLen(len(v))
			}
			return len(v)
		case map[string]any:
			n := 3
			for name, member := range v {
				n += len(name) + 1
				if member, ok := member.(map[string]any); ok {
					n += valueSize(member)
				}
			}
			return n
		}
	}
	return 1
}

// account stands in for the services of AWS that functions call, on loopback and in
// their own protocols. It trusts its caller: conditions are not judged, so only one
// sweep at a time may use it. Tasks always run, and nothing that is sent is delivered.
type account struct {
	*httptest.Server
	probe func(core.ProbeCall) core.ProbeAnswer

	mu    sync.Mutex
	items map[string]attributes // by pk and sk
	index map[string][]string   // what the detached index holds, by shard, in order
	calls map[string]int
	units units
}

// units is what DynamoDB charges for, as its documents count it.
type units struct{ read, write float64 }

const kilo = 1024

// reads counts an item that is read consistently; half as much if it is not.
func readUnits(size int) float64 { return float64(max(1, (size+4*kilo-1)/(4*kilo))) }

func writeUnits(size int) float64 { return float64(max(1, (size+kilo-1)/kilo)) }

// indexWrites counts what a write of an item writes into the sparse indexes: a row
// that comes, goes or changes what is projected, and two where its key moves.
func indexWrites(before, after attributes) (n float64) {
	for _, index := range [][]string{{names.DetachedShard, names.DetachedSince}, {names.DueShard, names.DueAt, names.DueKind}, {names.ThreadKey, names.StartedAt}} {
		old, now := projected(before, index), projected(after, index)
		switch {
		case old == now:
		case old == "" || now == "":
			n++
		default:
			n += 2
		}
	}
	return n
}

// projected is an item's row of an index, "" if it has none.
func projected(it attributes, index []string) string {
	if it[index[0]] == nil || it[index[1]] == nil {
		return ""
	}
	var row strings.Builder
	for _, name := range index {
		row.WriteString(it.text(name) + " ")
	}
	return row.String()
}

func newAccount(t *testing.T, probe func(core.ProbeCall) core.ProbeAnswer) *account {
	a := &account{probe: probe, items: map[string]attributes{}, calls: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", a.serveTarget)
	mux.HandleFunc("POST /000000000000/{queue}", a.serveTarget)
	mux.HandleFunc("POST /2015-03-31/functions/{name}/invocations", a.serveInvoke)
	mux.HandleFunc("PUT /{bucket}/{key...}", a.servePut)
	a.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// dynamo is a client of the account's DynamoDB.
func (a *account) dynamo() *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		BaseEndpoint: &a.URL, Region: "us-east-1", Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider("test", "test", "")),
	})
}

func (a *account) count(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[name]++
}

func (a *account) servePut(rw http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	a.count("PutObject")
	rw.Header().Set("ETag", `"bench"`)
}

func (a *account) serveInvoke(rw http.ResponseWriter, r *http.Request) {
	a.count("Invoke")
	body, err := io.ReadAll(r.Body)
	var call core.ProbeCall
	if err == nil {
		call, err = core.DecodeProbeCall(body)
	}
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(rw).Encode(a.probe(call))
}

func (a *account) serveTarget(rw http.ResponseWriter, r *http.Request) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	a.count(operation)
	serve := map[string]func(json.RawMessage) (any, error){
		"GetItem": on(a.getItem), "PutItem": on(a.putItem), "UpdateItem": on(a.updateItem), "BatchGetItem": on(a.batchGetItem),
		"Query": on(a.query), "TransactWriteItems": on(a.transact),
		"DescribeTasks": on(describeTasks), "StopTask": on(stopTask), "SendMessageBatch": on(sendMessages), "PutEvents": on(putEvents),
	}[operation]
	body, err := io.ReadAll(r.Body)
	if serve == nil {
		err = fmt.Errorf("no such operation here: %q", operation)
	}
	var answer any
	if err == nil {
		answer, err = serve(body)
	}
	rw.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		answer = map[string]string{"__type": "ValidationException", "message": err.Error()}
	}
	_ = json.NewEncoder(rw).Encode(answer)
}

// on reads a request for do.
func on[In any](do func(In) (any, error)) func(json.RawMessage) (any, error) {
	return func(body json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, err
		}
		return do(in)
	}
}

func itemKey(key attributes) string { return key.text(names.PK.Name) + " " + key.text(names.SK.Name) }

type keyInput struct{ Key attributes }

func (a *account) getItem(in keyInput) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	it, ok := a.items[itemKey(in.Key)]
	a.units.read += readUnits(it.size())
	if ok {
		return map[string]any{"Item": it}, nil
	}
	return struct{}{}, nil
}

type putInput struct{ Item attributes }

func (a *account) putItem(in putInput) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.write(itemKey(in.Item), in.Item, 1)
	return struct{}{}, nil
}

type updateInput struct {
	Key                       attributes
	UpdateExpression          string
	ExpressionAttributeNames  map[string]string
	ExpressionAttributeValues attributes
}

var (
	setPart    = regexp.MustCompile(`(#\d+) = (if_not_exists\s*\([^:]*)?(:\d+)`)
	removePart = regexp.MustCompile(`#\d+`)
)

func (a *account) updateItem(in updateInput) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return map[string]any{"Attributes": a.update(in, 1)}, nil
}

// write replaces an item, or deletes it if next is nil, and charges for it: a
// transaction writes each item twice.
func (a *account) write(key string, next attributes, times float64) {
	before := a.items[key]
	a.units.write += times*writeUnits(max(before.size(), next.size())) + indexWrites(before, next)
	a.items[key] = next
	if next == nil {
		delete(a.items, key)
	}
}

func (a *account) update(in updateInput, times float64) attributes {
	it := maps.Clone(a.items[itemKey(in.Key)])
	if it == nil {
		it = maps.Clone(in.Key)
	}
	for line := range strings.Lines(in.UpdateExpression) {
		if names, ok := strings.CutPrefix(line, "REMOVE "); ok {
			for _, n := range removePart.FindAllString(names, -1) {
				delete(it, in.ExpressionAttributeNames[n])
			}
			continue
		}
		for _, part := range setPart.FindAllStringSubmatch(line, -1) {
			name := in.ExpressionAttributeNames[part[1]]
			if _, there := it[name]; !there || part[2] == "" {
				it[name] = in.ExpressionAttributeValues[part[3]]
			}
		}
	}
	a.write(itemKey(in.Key), it, times)
	return it
}

type transactInput struct {
	TransactItems []struct {
		Put    *putInput
		Update *updateInput
		Delete *keyInput
	}
}

func (a *account) transact(in transactInput) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, part := range in.TransactItems {
		switch {
		case part.Put != nil:
			a.write(itemKey(part.Put.Item), part.Put.Item, 2)
		case part.Update != nil:
			a.update(*part.Update, 2)
		case part.Delete != nil:
			a.write(itemKey(part.Delete.Key), nil, 2)
		}
	}
	return struct{}{}, nil
}

type batchInput struct {
	RequestItems map[string]struct{ Keys []attributes }
}

func (a *account) batchGetItem(in batchInput) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	responses := map[string][]attributes{}
	for table, request := range in.RequestItems {
		for _, key := range request.Keys {
			if it, ok := a.items[itemKey(key)]; ok {
				responses[table] = append(responses[table], it)
				a.units.read += readUnits(it.size())
			}
		}
	}
	return map[string]any{"Responses": responses, "UnprocessedKeys": struct{}{}}, nil
}

type queryInput struct {
	IndexName                 string
	KeyConditionExpression    string
	ExpressionAttributeNames  map[string]string
	ExpressionAttributeValues attributes
	ExclusiveStartKey         attributes
}

// pageSize is how many rows a page of an index has: 1 MB of them at DynamoDB.
const pageSize = 8000

// query lists a shard of the detached index. Nothing is ever due here.
func (a *account) query(in queryInput) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if in.IndexName != names.DetachedIndex.Name {
		a.units.read += readUnits(0) / 2
		return map[string]any{"Items": []any{}, "Count": 0}, nil
	}
	if a.index == nil {
		a.sort()
	}
	keys := a.index[in.ExpressionAttributeValues.text(":0")]
	if len(in.ExclusiveStartKey) > 0 {
		keys = keys[1+slices.Index(keys, itemKey(in.ExclusiveStartKey)):]
	}
	more := len(keys) > pageSize
	keys = keys[:min(pageSize, len(keys))]
	rows, size := make([]attributes, len(keys)), 0
	for i, key := range keys {
		rows[i] = indexRow(a.items[key])
		size += rows[i].size()
	}
	a.units.read += readUnits(size) / 2
	answer := map[string]any{"Items": rows, "Count": len(rows)}
	if more {
		answer["LastEvaluatedKey"] = rows[len(rows)-1]
	}
	return answer, nil
}

// sort makes the detached index from the items, once: the sweep's own listing.
func (a *account) sort() {
	a.index = map[string][]string{}
	for key, it := range a.items {
		if shard, ok := it[names.DetachedShard]; ok {
			a.index[fmt.Sprint(shard["N"])] = append(a.index[fmt.Sprint(shard["N"])], key)
		}
	}
	for _, keys := range a.index {
		slices.SortFunc(keys, func(x, y string) int {
			return cmp.Or(cmp.Compare(a.items[x].text(names.DetachedSince), a.items[y].text(names.DetachedSince)), cmp.Compare(x, y))
		})
	}
}

// indexRow is what the detached index projects.
func indexRow(it attributes) attributes {
	row := attributes{}
	for _, name := range []string{names.PK.Name, names.SK.Name, names.DetachedShard, names.DetachedSince} {
		row[name] = it[name]
	}
	return row
}

type describeInput struct {
	Tasks []string `json:"tasks"`
}

// describeTasks: all run, with an exec agent that is there.
func describeTasks(in describeInput) (any, error) {
	var tasks []map[string]any
	for _, arn := range in.Tasks {
		tasks = append(tasks, map[string]any{
			"taskArn": arn, "lastStatus": "RUNNING", "desiredStatus": "RUNNING", "enableExecuteCommand": true,
			"containers": []map[string]any{{"name": container, "lastStatus": "RUNNING",
				"managedAgents": []map[string]any{{"name": "ExecuteCommandAgent", "lastStatus": "RUNNING"}}}},
		})
	}
	return map[string]any{"tasks": tasks, "failures": []any{}}, nil
}

// stopTask: it is on its way out.
func stopTask(in struct {
	Task string `json:"task"`
}) (any, error) {
	return map[string]any{"task": map[string]any{"taskArn": in.Task, "lastStatus": "STOPPED", "desiredStatus": "STOPPED"}}, nil
}

type sendInput struct {
	Entries []struct{ Id, MessageBody string }
}

func sendMessages(in sendInput) (any, error) {
	var taken []map[string]string
	for _, e := range in.Entries {
		sum := md5.Sum([]byte(e.MessageBody))
		taken = append(taken, map[string]string{"Id": e.Id, "MessageId": e.Id, "MD5OfMessageBody": hex.EncodeToString(sum[:])})
	}
	return map[string]any{"Successful": taken, "Failed": []any{}}, nil
}

func putEvents(in struct{ Entries []json.RawMessage }) (any, error) {
	ids := make([]map[string]string, len(in.Entries))
	for i := range ids {
		ids[i] = map[string]string{"EventId": fmt.Sprint("event-", i)}
	}
	return map[string]any{"FailedEntryCount": 0, "Entries": ids}, nil
}

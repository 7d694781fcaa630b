package engine_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func TestStopEndsTheEngineAndRemovesItsDirectory(t *testing.T) {
	e := enginetest.Own(t, engine.Options{})
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
	if response, err := http.Get(e.Endpoint + "/_ministack/ready"); err == nil {
		_ = response.Body.Close()
		t.Errorf("it still answers: %s", response.Status)
	}
	if _, err := os.Stat(e.Dir); !os.IsNotExist(err) {
		t.Errorf("directory %s is still there: %v", e.Dir, err)
	}
}

// TestTheEngineDiesWithItsParent starts an engine from a process that is killed.
func TestTheEngineDiesWithItsParent(t *testing.T) {
	if endpointFile := os.Getenv("ENGINE_TEST_CHILD"); endpointFile != "" {
		e := enginetest.Shared(t)
		if err := os.WriteFile(endpointFile, []byte(e.Endpoint), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Stdout.Close()
		select {} // until killed
	}
	enginetest.Shared(t) // skips where there is no engine
	file := filepath.Join(t.TempDir(), "endpoint")
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestTheEngineDiesWithItsParent$")
	child.Env = append(os.Environ(), "ENGINE_TEST_CHILD="+file)
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err == nil {
		t.Fatal("the child printed instead of closing its output")
	}
	endpoint, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		response, err := http.Get(string(endpoint) + "/_ministack/ready")
		if err != nil {
			return
		}
		_ = response.Body.Close()
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("it still answers")
		}
	}
}

// TestTablesAreAsNamesDescribesThem puts one row into the sparse index and takes
// it out again.
func TestTablesAreAsNamesDescribesThem(t *testing.T) {
	e := enginetest.Shared(t)
	client := dynamodb.NewFromConfig(e.Config())
	for _, table := range names.Tables {
		if err := engine.CreateTable(t.Context(), client, "shape-"+table.Name, table); err != nil {
			t.Fatal(err)
		}
	}
	item := map[string]types.AttributeValue{
		names.PK.Name:       &types.AttributeValueMemberS{Value: "-#r1"},
		names.SK.Name:       &types.AttributeValueMemberS{Value: "run"},
		names.DetachedShard: &types.AttributeValueMemberN{Value: "3"},
		names.DetachedSince: &types.AttributeValueMemberN{Value: "1764457200000"},
		"status":            &types.AttributeValueMemberS{Value: "running"},
	}
	put := func() {
		t.Helper()
		if _, err := client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: new("shape-runs"), Item: item}); err != nil {
			t.Fatal(err)
		}
	}
	put()
	found := detached(t, client)
	if len(found) != 1 || len(found[0]) != 4 {
		t.Fatalf("found %v, want one row of keys only", found)
	}
	delete(item, names.DetachedShard)
	put()
	if found := detached(t, client); len(found) != 0 {
		t.Errorf("found %v after the shard was removed", found)
	}
}

func detached(t *testing.T, client *dynamodb.Client) []map[string]types.AttributeValue {
	t.Helper()
	answer, err := client.Query(t.Context(), &dynamodb.QueryInput{
		TableName: new("shape-runs"), IndexName: &names.DetachedIndex.Name,
		KeyConditionExpression:    new(names.DetachedShard + " = :s"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":s": &types.AttributeValueMemberN{Value: "3"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Items
}

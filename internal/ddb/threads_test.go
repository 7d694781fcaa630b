package ddb_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// newShelfTable makes a checkpoints table of the test's own on the engine.
func newShelfTable(t *testing.T) (config aws.Config, table string) {
	config, table = enginetest.Shared(t).Config(), names.Checkpoints.Name+"-"+strings.ToLower(rand.Text())
	if err := engine.CreateTable(t.Context(), dynamodb.NewFromConfig(config), table, names.Checkpoints); err != nil {
		t.Fatal(err)
	}
	return config, table
}

func shelf(client *dynamodb.Client, table string) coretest.Shelf {
	s := ddb.NewThreads(client, table)
	return coretest.Shelf{Threads: s, SeedThread: s.SeedThread, SeedCheckpoint: s.SeedCheckpoint}
}

func openShelf(t *testing.T) coretest.Shelf {
	config, table := newShelfTable(t)
	return shelf(dynamodb.NewFromConfig(config), table)
}

func TestThreads(t *testing.T) {
	t.Run("contract", func(t *testing.T) { coretest.Threads(t, openShelf) })
	draw.Runs(t, 60)
	t.Run("transitions", func(t *testing.T) { coretest.ThreadTransitions(t, openShelf) })
	t.Run("commits", func(t *testing.T) { coretest.RandomCommits(t, openShelf) })
	t.Run("faults", func(t *testing.T) {
		coretest.ThreadFaults(t, func(t *testing.T, f coretest.Fault) (sound, broken coretest.Shelf) {
			config, table := newShelfTable(t)
			return shelf(dynamodb.NewFromConfig(config), table), shelf(dynamodb.NewFromConfig(config, func(o *dynamodb.Options) {
				o.HTTPClient = &breaking{next: config.HTTPClient, fault: f}
				o.Retryer = aws.NopRetryer{}
			}), table)
		})
	})
}
